"""PROBLEMS and HPARAMS: the known problems and hyperparameter sets; RECORDS of the latter. A dict with two good errors.

A name is registered in one of three ways: a module of `t2t_repro.problems` or `t2t_repro.hparams` registers it;
an installed package has an entry point in the group of the same name; or a user's directory is imported with
`import_user_directory`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from t2t_repro.config import HParams, Record, nearest
from t2t_repro.problem import Problem


class Named(Protocol):
    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)


class Registry(Mapping[str, Item], Generic[Item]):
    """A mapping of names to registered items. The first lookup imports the package `t2t_repro.<folder>`."""

    def __init__(self, kind: str, folder: str):
        self._kind = kind
        self._package = f"t2t_repro.{folder}"
        self._items: dict[str, Item] = {}
        self._places: dict[str, str] = {}
        self._loaded = False

    def register(self, item: Item, depth: int = 1) -> Item:
        """Registers `item` under its own name. Raises ValueError if that name is taken, naming both places.

        The place is that of the caller `depth` calls above this function.
        """
        caller = sys._getframe(depth)
        place = f"{os.path.abspath(caller.f_code.co_filename)}:{caller.f_lineno}"
        if item.name in self._items:
            raise ValueError(
                f"{self._kind} {item.name!r} is registered twice: at {self._places[item.name]} and at {place}; "
                "rename one of them"
            )
        self._items[item.name] = item
        self._places[item.name] = place
        return item

    def __getitem__(self, name: str) -> Item:
        self._load()
        self._must_have(name)
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._items))

    def folder(self, name: str) -> str:
        """Returns the folder of the module that registers `name`. Raises KeyError if none does."""
        self._load()
        self._must_have(name)
        return os.path.dirname(self._places[name].rpartition(":")[0])

    def in_order(self) -> list[Item]:
        """Returns all items in the order of registration: the rows of a table in the order of its file."""
        self._load()
        return list(self._items.values())

    def __len__(self) -> int:
        self._load()
        return len(self._items)

    def _must_have(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"expected the name of a {self._kind}. Received: {name!r:.60}")
        if name not in self._items:
            raise KeyError(f"unknown {self._kind} {name!r}{nearest(name, self._items)}")

    def _load(self) -> None:
        """Imports every module that registers items. Errors in these modules are raised."""
        if self._loaded:
            return
        self._loaded = True
        try:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            for entry_point in importlib.metadata.entry_points(group=self._package):
                entry_point.load()
        except BaseException:
            self._loaded = False
            raise


class _Problems(Registry[Problem]):
    """Problems. A relative path is resolved against the folder of the problem's module if it exists there."""

    def __getitem__(self, name: str) -> Problem:
        return super().__getitem__(name).beside(self.folder(name))


PROBLEMS = _Problems("problem", "problems")
HPARAMS: Registry[HParams] = Registry("hyperparameter set", "hparams")
RECORDS: Registry[Record] = Registry("record of a hyperparameter set", "hparams")

_USER_PACKAGE = "t2t_usr_dir"


def get_problem(name: str) -> Problem:
    """Returns the registered problem of that name. Raises KeyError, with the nearest known name, if there is none."""
    return PROBLEMS[name]


def list_problems() -> list[str]:
    """Returns the names of all registered problems."""
    return list(PROBLEMS)


def register_problem(problem: Problem) -> Problem:
    """Registers a problem under its name. Raises ValueError if the name is taken, and TypeError for anything else."""
    if not isinstance(problem, Problem):
        raise TypeError(f"register_problem: expected a Problem. Received: {problem!r:.60}")
    PROBLEMS._load()  # otherwise, a built-in name would be free, and every later look-up an error
    return PROBLEMS.register(problem, depth=2)


def get_hparams(name: str) -> HParams:
    """Returns the hyperparameter set of that name; `base@tiny` is one at another scale.

    Raises KeyError, with the nearest known name, if there is none.
    """
    from t2t_repro.scale import scaled

    return scaled(name) if isinstance(name, str) else HPARAMS[name]  # the error is that of the registry


def list_hparams() -> list[str]:
    """Returns the names of all registered hyperparameter sets."""
    return list(HPARAMS)


def register_hparams(hparams: HParams) -> HParams:
    """Registers a hyperparameter set under its name. Raises ValueError if the name is taken, has other characters
    than letters, digits and `_.+-` or starts with one of `.+-`, and TypeError for anything else."""
    if not isinstance(hparams, HParams):
        raise TypeError(f"register_hparams: expected HParams. Received: {hparams!r:.60}")
    if not re.fullmatch(r"\w[\w.+-]*", hparams.name):  # "@" separates a scale
        raise ValueError(
            "register_hparams: expected a name of letters, digits and _.+- that starts with none of .+-. Received: "
            f"{hparams.name!r:.60}"
        )
    HPARAMS._load()
    return HPARAMS.register(hparams, depth=2)


def import_user_directory(path: str) -> None:
    """Imports the user's own code, which registers problems and hyperparameter sets.

    Imports `__init__.py` if it exists, otherwise every file. This runs the code in the directory, so it is only called
    for a path that the user gave. The files become modules of a package `t2t_usr_dir` and may use relative imports.
    `sys.path` is unchanged, so no file can shadow an installed module. Hidden files are no modules.
    """
    if not os.path.isdir(path):
        raise FileNotFoundError(f"t2t_usr_dir: {path!r} is not a directory; give the folder with your problems")
    files = sorted(name for name in os.listdir(path) if name.endswith(".py") and name[0] != ".")
    if not files:
        raise FileNotFoundError(f"t2t_usr_dir: {path!r} contains no .py file; put the module with your problem there")
    for file in [] if "__init__.py" in files else files:
        if "." in file.removesuffix(".py"):
            raise ValueError(f"t2t_usr_dir: {os.path.join(path, file)} cannot be imported; rename it without a dot")
    importlib.invalidate_caches()
    places = [os.path.abspath(path)]
    if list(getattr(sys.modules.get(_USER_PACKAGE), "__path__", [])) != places:  # of another folder
        for name in [name for name in sys.modules if name.startswith(f"{_USER_PACKAGE}.")]:
            del sys.modules[name]
    spec = importlib.machinery.ModuleSpec(_USER_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = places
    package = sys.modules[_USER_PACKAGE] = importlib.util.module_from_spec(spec)
    for file in ["__init__.py"] if "__init__.py" in files else files:
        try:
            if file == "__init__.py":
                importlib.machinery.SourceFileLoader(_USER_PACKAGE, os.path.join(path, file)).exec_module(package)
            else:
                importlib.import_module(f"{_USER_PACKAGE}.{file.removesuffix('.py')}")
        except Exception as error:
            error.add_note(f"while importing {os.path.join(path, file)}")
            raise
