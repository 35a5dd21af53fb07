"""Judge by the name of a kernel what kind of work it does.

A trace has nothing but the name, so this is a judgement, not a measurement. The first rule that fits a name decides. So
the rule for special work stands before the rule for the general means that carry it out: a convolution before the
matrix multiply inside it, a copy before the elementwise kernel that copies.
"""

import re
from collections.abc import Collection

from multicard.trace.communication_kernels import COLLECTIVES, collective, collective_of_call, communicates
from multicard.trace.kernel_names import LONGEST, function_path, readable_name

__all__ = ["CLASSES", "COLLECTIVES", "collective", "collective_of_call", "kernel_class"]

CLASSES = (
    "communication",
    "attention",
    "convolution",
    "matrix_multiply",
    "normalization",
    "pooling",
    "optimizer",
    "reduction",
    "memory_layout",
    "elementwise",
    "other",
)

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (
            "attention",
            r"fmha|flash_?(?:fwd|bwd|attn|attention)|attention|attn_(?:fwd|bwd)|pagedkv|sage_(?:fwd|bwd|attn)|"
            r"qk_int\d*_sv_",
        ),
        (
            # igemm_… is an implicit matrix product of MIOpen, which uses it for convolutions only. xdlops_bwd_weight
            # and grouped_conv are names of Composable Kernel, naive_conv and miopenSp3AsmConv of MIOpen.
            "convolution",
            r"convolution|conv[123]d|depthwise|implicit_?gemm|winograd|[wd]grad(?:_|2d|$)|fprop|scudnn|hcudnn|"
            r"cudnn.*conv|convolve|compute\w*OffsetsKernel|igemm_(?:fwd|bwd|wrw)_|grouped_conv|xdlops_bwd_weight|"
            r"naive_conv|miopen\w*conv|(?:\b|_)conv_(?:fwd|bwd|wrw|kernel)|triton_(?:tem_fused_(?:\w*_)?)?conv",
        ),
        (
            # Cijk_… is a matrix product of Tensile, from which hipBLASLt and rocBLAS take theirs. fmoe_… is a matrix
            # product of aiter. The namespace fbgemm_gpu does not show one: it also holds embeddings and quantization.
            "matrix_multiply",
            r"(?<!fb)gemm|gemv|nvjet|cublas|cutlass|matmul|\bbmm_|splitk?reduce|dot_kernel|\bCijk_|wvSplitK|\bfmoe_|"
            r"fused_moe_kernel|triton_(?:tem_fused_(?:\w*_)?)?(?:b|add|baddb|scaled_)?mm(?:_|\b)",
        ),
        (
            # PyTorch's layer norm consists of kernels that are named after its parts, such as RowwiseMoments.
            "normalization",
            r"(?:batch|layer|group|instance|rms)_?norm|\bbn_(?:fw|bw)|batchnorm|norm_(?:fwd|bwd|forward|backward)|"
            r"GammaBetaBackward|RowwiseMoments",
        ),
        ("pooling", r"pool"),
        ("optimizer", r"multi_tensor_apply|fused_?(?:adam|sgd|lamb|adagrad|optimizer)|adamw?_|sgd_"),
        (
            "reduction",
            r"reduce_kernel|softmax|triton_(?:red|per)_|cub::.*reduce|\breduce|logsumexp|argm(?:ax|in)|"
            r"cross_entropy|nll_loss",
        ),
        (
            "memory_layout",
            r"transpose|permute|nchwToNhwc|nhwcToNchw|CatArray|copy_kernel|tensorTransform|indexSelect|index_select|"
            r"(?:^|\W|_)(?:gather|scatter)|index_elementwise|im2col|col2im|copy_page|(?:reshape|concat)_and_cache|"
            r"store_kv_?cache|rocclr_copyBuffer",
        ),
        (
            # Inductor names all of its kernels triton__0d1d… if its descriptive names are turned off. Most of these
            # kernels are elementwise.
            "elementwise",
            r"elementwise|pointwise|triton_poi_|unrolled|Functor|fill|dropout|activation|upsample|rotary|SubTensorOp|"
            r"act_and_mul|triton__\d+d",
        ),
    )
)

# The names of kernels that Inductor writes itself list all operators of which they do a part. Inductor leaves the main
# work of operators of the classes `_NOT_OF_INDUCTOR` to other kernels, and its own kernel may only add the bias after a
# convolution. So these classes do not apply to its kernels.
_INDUCTOR = re.compile(r"triton_(?:poi|red|per)_")
_NOT_OF_INDUCTOR = ("attention", "convolution", "matrix_multiply")
# The template arguments of an elementwise kernel name the function that it runs on each element. They show a more
# specific class of the kernel only if it is one of these classes.
_ELEMENTWISE_CLASSES = ("normalization", "pooling", "optimizer", "memory_layout", "elementwise")


def kernel_class(name: str) -> str:
    """Return the class of a kernel, one of `CLASSES`, from its demangled (or mangled) name.

    The name of the function itself decides. If it fits no class, as with `cutlass::Kernel`, the whole name decides,
    which has namespaces, template arguments and parameters. If the function is elementwise, the whole name may show a
    more specific class.

    >>> kernel_class("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_execute_kernel")
    'convolution'
    >>> kernel_class("triton_poi_fused_convolution_relu_3")
    'elementwise'
    """
    name = name[:LONGEST]
    if communicates(name):
        return "communication"
    classes = [class_name for class_name, _ in _RULES]
    if _INDUCTOR.match(name):
        classes = [class_name for class_name in classes if class_name not in _NOT_OF_INDUCTOR]
    function = function_path(name).rpartition("::")[2]
    class_of_function = _first_class(function, classes)
    if class_of_function == "elementwise":
        return _first_class(readable_name(name), _ELEMENTWISE_CLASSES)
    if class_of_function == "other":
        return _first_class(readable_name(name), classes)
    return class_of_function


def _first_class(text: str, classes: Collection[str]) -> str:
    """Return the first of `_RULES` that fits a text and is of one of these classes; "other" if none does."""
    for class_name, rule in _RULES:
        if class_name in classes and rule.search(text):
            return class_name
    return "other"
