"""Paddle's C interface for kernels, as far as it is used here, looked up by name in the loaded library.

What a function is called and takes is a fact of Paddle's public headers; none of them is needed to compile
this.
"""

cdef extern from "<stdbool.h>":
    ctypedef bint cbool "bool"

cdef extern from "<dlfcn.h>" nogil:
    void *dlsym(void *handle, const char *name)

cdef enum:
    MAX_RANK = 9  # the most axes that a tensor of Paddle has

# Codes of PD_KernelArgumentType.
cdef enum:
    PD_CONTEXT = 0
    PD_TENSOR = 1
    PD_BOOL_ATTRIBUTE = 2
    PD_STRING_ATTRIBUTE = 9
    PD_OPTIONAL_TENSOR = 24

# Codes of PD_DataType.
cdef enum:
    PD_BOOL = 1
    PD_UINT8 = 2
    PD_FLOAT16 = 10
    PD_FLOAT32 = 11
    PD_FLOAT64 = 12
    PD_BFLOAT16 = 13

# Tensors, contexts and devices are opaque. The functions of a tensor report through `status`, which says
# nothing that a caller who stays within a tensor's rank would need.
ctypedef void *(*context_at_t)(void *context, size_t index) noexcept nogil
ctypedef cbool (*context_bool_t)(void *context, size_t index) noexcept nogil
ctypedef const char *(*context_string_t)(void *context, size_t index) noexcept nogil
ctypedef void *(*of_pointer_t)(void *pointer) noexcept nogil
ctypedef const char *(*string_t)(void *attribute) noexcept nogil
ctypedef cbool (*tensor_bool_t)(void *tensor, int *status) noexcept nogil
ctypedef void *(*tensor_data_t)(void *tensor, int *status) noexcept nogil
ctypedef int (*tensor_int_t)(void *tensor, int *status) noexcept nogil
ctypedef int64_t (*tensor_int64_t)(void *tensor, int *status) noexcept nogil
ctypedef int64_t (*tensor_at_t)(void *tensor, size_t index, int *status) noexcept nogil
ctypedef void (*set_dims_t)(void *tensor, int64_t rank, const int64_t *dims, int *status) noexcept nogil
ctypedef void *(*allocate_t)(void *device, void *tensor, size_t size, int dtype, int *status) noexcept nogil
ctypedef void (*register_t)(
    const char *name, const char *backend, int dtype, int layout,
    size_t inputs, const int *input_kinds, size_t attributes, const int *attribute_kinds,
    size_t outputs, const int *output_kinds,
    void *define_arguments, void *run, void *run_variadic,
) noexcept

cdef of_pointer_t device_of
cdef context_at_t input_at
cdef context_at_t output_at
cdef context_bool_t bool_at
cdef context_string_t string_at
cdef of_pointer_t optional_tensor
cdef string_t string_of
cdef tensor_bool_t is_initialized
cdef tensor_data_t data_of
cdef tensor_int_t dtype_of
cdef tensor_int64_t rank_of
cdef tensor_at_t dim_of
cdef tensor_int64_t strides_of
cdef tensor_at_t stride_of
cdef set_dims_t set_dims
cdef allocate_t allocate
cdef register_t register_kernel


cdef void *symbol(size_t library, str name) except NULL:
    cdef void *found = dlsym(<void *> library, name.encode())
    if found == NULL:
        raise LookupError(f"this Paddle has no function {name}")
    return found


cdef int look_up(size_t library) except -1:
    """Finds every function in a loaded library or in those it depends on. LookupError names one that is
    missing.
    """
    global device_of, input_at, output_at, bool_at, string_at, optional_tensor, string_of, is_initialized
    global data_of, dtype_of, rank_of, dim_of, strides_of, stride_of, set_dims, allocate, register_kernel
    device_of = <of_pointer_t> symbol(library, "PD_KernelContextGetDeviceContext")
    input_at = <context_at_t> symbol(library, "PD_KernelContextInputAt")
    output_at = <context_at_t> symbol(library, "PD_KernelContextOutputAt")
    bool_at = <context_bool_t> symbol(library, "PD_KernelContextBoolAttrAt")
    string_at = <context_string_t> symbol(library, "PD_KernelContextStringAttrAt")
    optional_tensor = <of_pointer_t> symbol(library, "PD_OptionalTensorGetPointer")
    string_of = <string_t> symbol(library, "PD_StringAttr")
    is_initialized = <tensor_bool_t> symbol(library, "PD_TensorIsInitialized")
    data_of = <tensor_data_t> symbol(library, "PD_TensorGetDataPointer")
    dtype_of = <tensor_int_t> symbol(library, "PD_TensorGetPDDataType")
    rank_of = <tensor_int64_t> symbol(library, "PD_TensorGetNumDims")
    dim_of = <tensor_at_t> symbol(library, "PD_TensorGetDim")
    strides_of = <tensor_int64_t> symbol(library, "PD_TensorGetNumStrides")
    stride_of = <tensor_at_t> symbol(library, "PD_TensorGetStride")
    set_dims = <set_dims_t> symbol(library, "PD_TensorSetDims")
    allocate = <allocate_t> symbol(library, "PD_DeviceContextAllocateTensor")
    register_kernel = <register_t> symbol(library, "PD_RegisterPhiKernel")
    return 0
