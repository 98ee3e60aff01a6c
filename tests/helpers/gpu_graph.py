"""Predicts where TensorFlow computes and keeps each value of a traced graph on a machine with GPUs.

TensorFlow's kernel registry holds the CUDA kernels on every machine, and which of their inputs and outputs lie in host
memory. From that follows, without a GPU, which operation runs on which device and which edge of the graph is a copy.

What is assumed: an operation runs on the device that its node or its caller names, and else on the GPU if it has a
kernel there. Calls are inlined and `Identity` removed, as TensorFlow does before a run. A loop or a branch carries a
value where its `Switch` does: int32 in host memory, most others on the device.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry
from tensorflow.python.ops import resource_variable_ops

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
LOOPS, BRANCHES = {"While", "StatelessWhile"}, {"If", "StatelessIf", "Case", "StatelessCase"}
BODIES = CALLS | LOOPS | BRANCHES
ON_HOST = {tf.string, tf.resource}  # handles and texts: never in a GPU's memory
GPU, XLA = ("GPU", "DEFAULT"), ("XLA_GPU_JIT",)  # kinds of kernels, the first that fits is taken


class Copy(NamedTuple):
    """Values of one output that are copied between host and device memory."""

    producer: str  # operations, and the name of the consumer's input
    consumer: str
    argument: str
    dtype: str


class Audit(NamedTuple):
    """Placement and copies of a traced function on a machine with a GPU."""

    operations: Counter[str]  # of all functions of the graph
    missing: Counter[str]  # operations without a kernel on the GPU for their data types, "... of strings" for texts
    to_host: dict[str, Counter[Copy]]  # by function
    to_device: dict[str, Counter[Copy]]
    named: dict[Copy, str]  # the name of one such consumer

    def copies(self, direction: str, *, function: str = "") -> Counter[Copy]:
        """All copies "to_host" or "to_device", in functions whose names hold `function`."""
        found = getattr(self, direction)
        return sum((found[name] for name in found if function in name), Counter())


@contextlib.contextmanager
def pretended_gpus(number: int) -> Iterator[None]:
    """Code that asks for devices finds GPUs, and variables report to lie on one: a replica's own.

    TensorFlow itself, which now places on the CPU what names a missing device, is not misled.
    """
    tf.function(lambda: tf.constant(1.0) + 1, jit_compile=True)()  # with the first, all of XLA's kernels are registered
    names = [f"GPU:{index}" for index in range(number)]
    soft_placement = tf.config.get_soft_device_placement()
    with pytest.MonkeyPatch.context() as patch:
        for function in ("list_physical_devices", "list_logical_devices"):
            patch.setattr(tf.config, function, functools.partial(_listed, names, getattr(tf.config, function)))
        patch.setattr(resource_variable_ops.BaseResourceVariable, "device", property(_gpu_of))
        tf.config.set_soft_device_placement(True)
        try:
            yield
        finally:
            tf.config.set_soft_device_placement(soft_placement)


def _listed(gpus: list[str], real: Callable[[str], list[Any]], kind: str | None = None) -> list[Any]:
    return gpus if kind == "GPU" else real(kind) if kind else [*real("CPU"), *gpus]


def _gpu_of(variable: Any) -> str:
    _, _, replica = variable.name.partition("/replica_")
    return f"/job:localhost/replica:0/task:0/device:GPU:{int(replica.partition(':')[0] or 0)}"


def audit(function: Any) -> Audit:
    """Analyzes a `tf.types.experimental.ConcreteFunction`, whose arguments come from the host."""
    return _Auditor(function.graph).audit()


@functools.cache
def kernels_of(operation: str) -> list[Any]:
    return [each for each in kernels.get_registered_kernels_for_op(operation).kernel if not each.label]


def kernel_of(node: Any, kinds: Sequence[str]) -> Any:
    """The registration of the kernel that TensorFlow takes, or None if there is none for the node's data types."""
    types = {name: tuple(_types(attribute)) for name, attribute in node.attr.items()}
    return _kernel_of(node.op, tuple(sorted(types.items())), tuple(kinds))


@functools.cache
def _kernel_of(operation: str, types: tuple[tuple[str, tuple[int, ...]], ...], kinds: tuple[str, ...]) -> Any:
    given = dict(types)

    def admits(kernel: Any) -> bool:
        return all(set(given[each.name]) <= set(each.allowed_values.list.type) for each in kernel.constraint)

    for kind in kinds:
        found = [each for each in kernels_of(operation) if each.device_type == kind and admits(each)]
        if found:
            return max(found, key=lambda each: each.priority)
    return None


def _types(attribute: Any) -> list[int]:
    """The data types that an attribute of a node is, if it is any."""
    return [attribute.type] if attribute.WhichOneof("value") == "type" else list(attribute.list.type)


def _ends(node: Any, arguments: Any) -> list[tuple[str, tf.DType]]:
    """The inputs or outputs of a node, one by one: the name in the operation's definition, and the data type."""
    ends: list[tuple[str, tf.DType]] = []
    for argument in arguments:
        if argument.type_list_attr:
            types = list(node.attr[argument.type_list_attr].list.type)
        else:
            count = node.attr[argument.number_attr].i if argument.number_attr else 1
            types = [node.attr[argument.type_attr].type if argument.type_attr else argument.type] * count
        ends += [(argument.name, tf.as_dtype(each)) for each in types]
    return ends


class _Body:
    """A function of the graph, or the outermost one."""

    def __init__(self, name: str, nodes: Any, arguments: Sequence[str], results: Sequence[str]):
        self.name, self.nodes = name, {node.name: node for node in nodes}
        self.arguments, self.results = {argument: at for at, argument in enumerate(arguments)}, results


class _Auditor:
    def __init__(self, graph: Any):
        definition = graph.as_graph_def()
        self.bodies = {each.signature.name: self._body(each) for each in definition.library.function}
        self.main = _Body("", definition.node, [], [])
        # what is captured lies where it was made; everything else that comes in is the caller's, on the host
        captured = {tensor.op.name for tensor in graph.internal_captures}
        self.captured = {name for name in captured if self.main.nodes[name].attr["dtype"].type != tf.int32}
        self.seen: set[tuple] = set()
        self.counted: set[str] = set()
        self.copies: set[tuple] = set()
        self.found = Audit(Counter(), Counter(), {}, {}, {})

    @staticmethod
    def _body(function: Any) -> _Body:
        arguments = [each.name for each in function.signature.input_arg]
        results = [function.ret[each.name] for each in function.signature.output_arg]
        return _Body(function.signature.name, function.node_def, arguments, results)

    def audit(self) -> Audit:
        self._visit(_Call(self, self.main, [], on_gpu=True))
        return self.found

    def _visit(self, call: _Call) -> None:
        key = (call.body.name, tuple(call.in_host), call.on_gpu)
        if key in self.seen:
            return
        if call.body.name not in self.counted:
            self.counted.add(call.body.name)
            for node in call.body.nodes.values():
                self.found.operations[node.op] += 1
                if call.wanted_on_gpu(node) and not call.kernel(node):
                    self.found.missing[_name(node)] += 1
        self.seen.add(key)
        for node in call.body.nodes.values():
            for inner in call.inner(node):
                self._visit(inner)
            for copy in call.copies(node):
                self._note(call, node.op, node.name, *copy)
        for copy in call.copied_results():
            self._note(call, "result", "result", *copy)

    def _note(
        self,
        call: _Call,
        consumer: str,
        name: str,
        source: tuple[str, int],
        to_host: bool,
        argument: str,
        dtype: Any,
    ) -> None:
        """Counts a copy, once for all consumers of what is copied."""
        key = call.body.name, source, to_host
        if key in self.copies:
            return
        self.copies.add(key)
        producer = call.body.nodes[source[0]].op if source[0] in call.body.nodes else "argument"
        copy = Copy(producer, consumer, argument, dtype.name)
        counts = self.found.to_host if to_host else self.found.to_device
        counts.setdefault(call.body.name, Counter())[copy] += 1
        self.found.named.setdefault(copy, name)


def _name(node: Any) -> str:
    types = [tf.as_dtype(each) for attribute in node.attr.values() for each in _types(attribute) if each]
    return f"{node.op} of strings" if tf.string in types else node.op


class _Call:
    """A body with where its arguments lie, and where it runs unless a node says otherwise."""

    def __init__(
        self,
        auditor: _Auditor,
        body: _Body,
        in_host: Iterable[bool],
        on_gpu: bool,
        compiled: bool = False,
        wanted: Iterable[tuple[bool, tf.DType]] = (),
    ):
        self.auditor, self.body, self.in_host, self.on_gpu = auditor, body, list(in_host), on_gpu
        self.wanted = list(wanted)  # of each result whether it must lie in host memory, if that matters
        self.kinds = XLA if compiled else GPU
        self.compiled = compiled
        self.known: dict[tuple[str, int], bool] = {}
        self.constants: dict[str, bool] = {}

    def kernel(self, node: Any) -> Any:
        """The kernel on the GPU, if there is one."""
        return kernel_of(node, self.kinds)

    def runs_on_gpu(self, node: Any) -> bool:
        return self.wanted_on_gpu(node) and self.kernel(node) is not None

    def wanted_on_gpu(self, node: Any) -> bool:
        return "GPU" in node.device if node.device else self.on_gpu

    def is_constant(self, node: Any) -> bool:
        """Returns whether TensorFlow folds the node: a stateless operation on constants only."""
        if node.name not in self.constants:
            inputs = [self.source(each)[0] for each in node.input if not each.startswith("^")]
            given = all(each in self.body.nodes and self.is_constant(self.body.nodes[each]) for each in inputs)
            foldable = bool(inputs) and not op_def_registry.get(node.op).is_stateful and node.op not in BODIES
            self.constants[node.name] = node.op == "Const" or (foldable and given)
        return self.constants[node.name]

    def source(self, reference: str) -> tuple[str, int]:
        """`node`, `node:2` or, in a function, `node:output:2`, as the node and the number of its output."""
        name, *rest = reference.split(":")
        if name in self.body.arguments or not rest:
            return name, 0
        if len(rest) == 1:
            return name, int(rest[0])
        node = self.body.nodes[name]
        ends = _ends(node, op_def_registry.get(node.op).output_arg)
        return name, [end for end, _ in ends].index(rest[0]) + int(rest[1])

    def lies_in_host(self, source: tuple[str, int]) -> bool:
        if source not in self.known:
            self.known[source] = self._lies_in_host(*source)
        return self.known[source]

    def _lies_in_host(self, name: str, output: int) -> bool:
        if name in self.body.arguments:
            return self.in_host[self.body.arguments[name]]
        node = self.body.nodes[name]
        if self.is_constant(node):
            dtype = _ends(node, op_def_registry.get(node.op).output_arg)[output][1]
            return dtype in {tf.int32, *ON_HOST} or not self.runs_on_gpu(node)
        if node.op == "Placeholder":
            return name not in self.auditor.captured or tf.as_dtype(node.attr["dtype"].type) in ON_HOST
        inputs = [each for each in node.input if not each.startswith("^")]
        if node.op == "Identity":
            return self.lies_in_host(self.source(inputs[0]))
        if node.op in CALLS and not node.attr["_XlaMustCompile"].b:
            (inner,) = self.inner(node)
            return inner.lies_in_host(inner.source(inner.body.results[output]))
        argument, dtype = _ends(node, op_def_registry.get(node.op).output_arg)[output]
        return self._held_in_host(node, argument, dtype)

    def _held_in_host(self, node: Any, argument: str, dtype: tf.DType) -> bool:
        """Returns whether the operation needs this input or output in host memory."""
        if dtype in ON_HOST or not self.runs_on_gpu(node):
            return True
        if node.op in (LOOPS | BRANCHES) and argument not in ("cond", "branch_index"):
            return "data" in _switch(dtype).host_memory_arg
        if node.op in CALLS:
            return False
        return argument in self.kernel(node).host_memory_arg

    def inner(self, node: Any) -> list[_Call]:
        """The bodies that the node calls."""
        inputs = [each for each in node.input if not each.startswith("^")]
        on_gpu = self.wanted_on_gpu(node)
        if node.op in CALLS:
            body = self.auditor.bodies[node.attr["f"].func.name]
            compiled = self.compiled or node.attr["_XlaMustCompile"].b
            return [_Call(self.auditor, body, map(self.lies_in_host, map(self.source, inputs)), on_gpu, compiled)]
        if node.op in LOOPS:
            carried = self._held(node, op_def_registry.get(node.op).input_arg)
            hosts = [in_host for in_host, _ in carried]
            wanted = {"cond": [(True, tf.bool)], "body": carried}
            bodies = {each: self.auditor.bodies[node.attr[each].func.name] for each in wanted}
            return [_Call(self.auditor, bodies[each], hosts, on_gpu, self.compiled, wanted[each]) for each in wanted]
        if node.op in BRANCHES:
            _, *hosts = (in_host for in_host, _ in self._held(node, op_def_registry.get(node.op).input_arg))
            results = self._held(node, op_def_registry.get(node.op).output_arg)
            branches = [node.attr[each].func for each in ("then_branch", "else_branch") if each in node.attr]
            names = [each.name for each in branches or node.attr["branches"].list.func]
            bodies = [self.auditor.bodies[name] for name in names]
            return [_Call(self.auditor, body, hosts, on_gpu, self.compiled, results) for body in bodies]
        return []

    def _held(self, node: Any, arguments: Any) -> list[tuple[bool, tf.DType]]:
        return [(self._held_in_host(node, *end), end[1]) for end in _ends(node, arguments)]

    def copies(self, node: Any) -> Iterator[tuple[tuple[str, int], bool, str, tf.DType]]:
        """The node's inputs, and of a loop or branch the bodies' results, that do not lie where they are wanted."""
        if (
            self.compiled
            or self.is_constant(node)
            or node.op == "Identity"
            or (node.op in CALLS and not node.attr["_XlaMustCompile"].b)
        ):
            return
        inputs = [each for each in node.input if not each.startswith("^")]
        ends = _ends(node, op_def_registry.get(node.op).input_arg)
        for reference, (argument, dtype) in zip(inputs, ends, strict=True):
            source = self.source(reference)
            wanted = self._held_in_host(node, argument, dtype)
            if self.lies_in_host(source) != wanted:
                yield source, wanted, argument, dtype

    def copied_results(self) -> Iterator[tuple[tuple[str, int], bool, str, tf.DType]]:
        if self.wanted and not self.compiled:
            for reference, (in_host, dtype) in zip(self.body.results, self.wanted, strict=True):
                source = self.source(reference)
                if self.lies_in_host(source) != in_host:
                    yield source, in_host, "", dtype


def _switch(dtype: tf.DType) -> Any:
    node = tf.compat.v1.NodeDef(op="Switch", attr={"T": tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)})
    return kernel_of(node, GPU)
