"""The fast paths of the model. tests/model/test_kernels.py compares value and gradient with a plain implementation. The
three files of the paper (`attention`, `layers`, `transformer`) have no custom gradient and no cast.

Measured gains, for base in bfloat16 on two CPU cores (AMD EPYC, AVX512-BF16) unless stated:

| trick                                                        | gain, as speed after over before unless stated      |
|--------------------------------------------------------------|-----------------------------------------------------|
| custom gradients, and casts repeated instead of kept:        | peak memory of a step 1,289 MB instead of 1,479;    |
|   `linear`, `layer_norm`, `dropout`, attention; rows flat    |   8,800 operations instead of 12,300, traced in     |
|                                                              |   12 s instead of 20                                |
| one gradient for product and bias, `sum_of_rows`, 16 bits    | 1.05 together; `sum_of_rows` a half to a seventh of |
|   for an element of a mask, `layer_norm` with a pass less    |   the time of TensorFlow's sum                      |
| decoding: weights cast outside the loop, `prepared_products` | 1.97 for one sentence, 1.27 for 24 (beam 4)         |
| decoding: matrices packed once, `packed.packed_linear`       | 1.3 to 1.9 in bfloat16, 1.3 for one sentence in     |
|                                                              |   float32 (Intel Xeon with AMX)                     |
| decoding: in float32 only large matrices are packed,         | small: 1.24 for one sentence, 0.98 for 64; one line |
|   `packed.gains`                                             |   0.97 of the time (Intel Xeon without AMX)         |
| decoding: packed matrices in the encoder too, and ReLU in    | 1.06 for 64 sentences, int8 1.09; 2% more peak      |
|   the kernel of its product, `fused`, in bfloat16            |   memory (Intel Xeon with AMX)                      |
| decoding: 8-bit integers in the encoder too                  | 1.08 for 64 sentences, 1.19 greedily (float32,      |
|                                                              |   Intel Xeon without AMX), 1.06 and 1.12 (bfloat16) |
| decoding: small matrices in float32 instead of 8-bit         | small: 2.01 for one sentence, 1.21 for 64 (Intel    |
|   integers, `int8.int8_or_float32`                           |   Xeon without AMX), 1.98 and 1.15 with AMX         |
| decoding: rows of 8-bit integers are unsigned, `int8.SHIFT`  | 1.10 for 64 sentences, 1.05 greedily (Intel Xeon    |
|                                                              |   without AMX)                                      |
| decoding: fewer operations around products of 8-bit          | 1.37 for one sentence, 1.09 greedily, 1.07 for 64   |
|   integers, none of them the same in each step               |                                                     |
| decoding: W_Q, W_K, W_V joined, rows flat, `joined_products` | 1.14 for one sentence (float32)                     |
| decoding: heads move as integers, `swapped_as_integers`      | a third of the time of a transposition, which took  |
|                                                              |   30% of all operations' time for one sentence      |
| decoding: keys and values written in place, `cache_writer`   | 1.12 for one sentence in int8, 1.06 in float32;     |
|                                                              |   0.93 of the peak memory in float32 (Intel Xeon    |
|                                                              |   without AMX)                                      |
| decoding: caches grow by 8 positions, `incremental.BLOCK`,   | 1.05 for 64 sentences in int8; 0.97 of the peak     |
|   and are copied only when sentences leave                   |   memory (Intel Xeon without AMX)                   |
| decoding: caches are copied without the entries that no beam | 1.10 for long outputs of a trained parser, beam 4,  |
|   sees any more, `cache_with_room`                           |   with the start; 0.92 of the peak memory (Zen 5)   |
| training: a product with a bias is a convolution, with its   | 1.10 for base, 1.08 for d_model 256, 1.02 for 128   |
|   ReLU, `_convolved_rows`, in bfloat16                       |   (Intel Xeon with AMX)                             |
| training: a micro-batch per core up to d_model 256,          | 1.23 for d_model 128, 1.13 for 256; 1.11 and 1.06   |
|   `training.parallel`                                        |   times the memory (Intel Xeon with AMX)            |
| training: huge pages, `system.heap`                          | 1.05 for base, 1.03 for small; 1.00 and 1.01 times  |
|                                                              |   the memory (Intel Xeon with AMX)                  |
| loading a run: `unset_weights`                               | the model is made in 0.26 s instead of 0.83 (Intel  |
|                                                              |   Xeon, AMX-BF16)                                   |
| loading a run: encoder and decoder prepared on a core each,  | one line takes 0.95 of the time with base, 0.98     |
|   `inference.ensemble`                                       |   with small; the same peak (Intel Xeon, AMX-BF16)  |
| decoding: operations of layers copied, `copies.Copies`       | the search is traced in 0.58 of the processor time, |
|                                                              |   one line takes 0.87 (Intel Xeon, AMX-BF16)        |
| decoding: constants shared by copies, no tensors of zeros    | one line takes 0.95 of the processor time; 957      |
|   captured, and no passes in MLIR (`graph_options`)          |   operations in a step instead of 1,266 (Xeon, AMX) |
| decoding: no folding of constants, no arithmetic passes      | one line takes 0.94 of the time with base, together |
|   (`graph_options`), one kernel for weights of a name        |   (Intel Xeon without AMX)                          |
| decoding: softmax overwrites the logits, `candidates`; 8-bit | 0.95 of the peak memory in int8, 1.02 for 64        |
|   matrices rounded in parts; freed memory returned           |   sentences (Intel Xeon without AMX)                |
| decoding: one thread executes a search, and operations of    | 1.27 for one sentence in int8, 1.13 in bfloat16     |
|   oneDNN have their names, `search_graph`, `by_name`         |   (Intel Xeon with AMX), 1.06 in float32 (Zen 5)    |
| decoding: in float32 few rows have a graph of their own,     | 0.89 of the peak memory of the process, 0.90 of the |
|   with packed matrices, `packed.few_rows`                    |   time of one line (Zen 5)                          |
| decoding: embeddings read from the rounded matrix,           | 0.98 of the peak memory of the process in int8      |
|   `int8.int8_embedding`                                      |   (Intel Xeon without AMX)                          |
| decoding: embeddings of bfloat16 read from the packed        | 0.89 of the peak memory of the process (AMD EPYC,   |
|   matrix, `packed_embedding`; packing before the first batch |   Zen 5)                                            |
"""

from t2t_repro.model.kernels.attention import (
    attention_weights,
    cache_with_room,
    cache_writer,
    join_heads,
    recorded_attention,
    scaled_dot_product_attention,
    split_heads,
    swapped_as_integers,
)
from t2t_repro.model.kernels.casts import cast_again, in_dtype, in_float64
from t2t_repro.model.kernels.initial_values import initializer, unset_weights
from t2t_repro.model.kernels.linear_layers import linear, sum_of_rows, table_rows, tied_logits
from t2t_repro.model.kernels.products import (
    Linear,
    joined_products,
    narrow_linear,
    prepared,
    prepared_products,
    product_key,
    rows_of,
    tensors_read_by,
)
from t2t_repro.model.kernels.residual import EPSILON, dropout, layer_norm

__all__ = [
    "EPSILON",
    "Linear",
    "attention_weights",
    "cache_with_room",
    "cache_writer",
    "cast_again",
    "dropout",
    "in_dtype",
    "in_float64",
    "initializer",
    "join_heads",
    "joined_products",
    "layer_norm",
    "linear",
    "narrow_linear",
    "prepared",
    "prepared_products",
    "product_key",
    "recorded_attention",
    "rows_of",
    "scaled_dot_product_attention",
    "split_heads",
    "sum_of_rows",
    "swapped_as_integers",
    "table_rows",
    "tensors_read_by",
    "tied_logits",
    "unset_weights",
]
