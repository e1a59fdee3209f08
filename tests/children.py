"""Programs that other tests run in interpreters of their own: `python children.py NAME ARGUMENTS`.

They fork, exhaust limits, interrupt themselves or measure the whole process. Each imports what it needs itself,
because the order of imports is part of what is tested, and ends with an AssertionError where something is wrong.
"""

import importlib
import os
import signal
import sys
import threading
import time
import traceback

HANG = 30  # seconds after which a forked child counts as hung


def check(m=96, k=64, n=160, dtype="float32"):
    """A forward and, in float32, a backward of small integers, which are exact in any order of summation."""
    import numpy as np

    import fge

    rng = np.random.default_rng(m * n + k)
    x, y, grad = (rng.integers(-2, 3, shape) for shape in ((m, k), (k, n), (m, n)))
    z = x @ y  # of integers: no BLAS, none of its threads
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    out, reserve = fge.fused_gemm_epilogue(x.astype(dtype), y.astype(dtype), activation="relu")
    assert np.array_equal(out.astype(np.int64), np.maximum(z, 0).astype(dtype).astype(np.int64)), "wrong out"
    if dtype == "float32":
        single = [array.astype(dtype) for array in (x, y, grad)]
        grads = fge.fused_gemm_epilogue_grad(single[0], single[1], reserve, single[2], activation="relu")
        dz = grad * (z > 0)
        for got, expected in zip(grads, (dz @ y.T, x.T @ dz, dz.sum(axis=0))):
            assert np.array_equal(got, expected), "wrong gradient"


def check_large():
    check(512, 256, 512)


def import_all(names):
    for name in names.split(","):
        importlib.import_module(name)


def use_torch(size=64):
    import torch

    ones = torch.ones(size, size)
    assert (torch.mm(ones, ones) == size).all()


# Imports and configuration


def import_is_light():
    import fge

    assert fge.activations()
    check()
    heavy = {"ml_dtypes", "torch", "paddle", "pandas", "matplotlib"} & set(sys.modules)
    assert not heavy, f"import fge brought {heavy}"


def environment_forces(name):
    import fge

    def configurations():
        with_default = str(fge.config())
        context = fge.engine if name in fge.engines() else fge.isa
        with context(name):
            return with_default, str(fge.config())

    from_environment, from_context = configurations()
    assert from_environment == from_context, f"{from_environment}\n{from_context}"
    check()


def wrong_environment_is_reported(variable):
    try:
        import fge

        fge.show_config(open(os.devnull, "w"))
        check()
    except Exception as error:
        assert variable in str(error), error
    else:
        raise AssertionError("nobody complained")


# Forks


def in_fork(work):
    """Run `work` in a forked child; fail where it fails, dies or hangs."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, f"the forked child ended with status {status}"
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the forked child hung")


def fork_after_use(imports="fge"):
    import_all(imports)
    if "torch" in imports:
        use_torch(512)
    check_large()
    in_fork(check_large)
    check_large()  # the parent goes on as before
    in_fork(lambda: in_fork(check_large))


def fork_before_use():
    import fge  # noqa: F401

    in_fork(check_large)
    check_large()


def fork_from_a_thread():
    """The child's only thread is a copy of one that was no main thread."""
    check_large()
    failures = []

    def fork():
        try:
            in_fork(check_large)
        except AssertionError as error:
            failures.append(error)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert not failures, failures


def fork_while_others_call(size):
    """At the moment of the fork another thread is inside a call, and holds whatever locks it takes."""
    size = int(size)
    stop = threading.Event()

    import numpy as np

    import fge

    x, y = np.ones((size, 256), np.float32), np.ones((256, size), np.float32)

    def keep_calling():  # calls alone: a lock of Python's or numpy's that it held at the fork would hang the child
        while not stop.is_set():
            fge.fused_gemm_epilogue(x, y, activation="relu")

    caller = threading.Thread(target=keep_calling)
    caller.start()
    try:
        for _ in range(20 if size > 1 else 100):
            in_fork(check)
    finally:
        stop.set()
        caller.join()


def multiprocessing_pool(method):
    import multiprocessing

    check_large()
    with multiprocessing.get_context(method).Pool(2) as pool:
        pool.starmap_async(check, [(64 + i, 32, 100) for i in range(8)]).get(timeout=3 * HANG)


def process_pool_executor():
    import concurrent.futures
    import multiprocessing

    check_large()
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        for future in [pool.submit(check, 64 + i, 32, 100) for i in range(8)]:
            future.result(timeout=HANG)


class CheckedItems:
    """A data set for torch's DataLoader, which asks for its items in forked workers."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        check(64 + index, 32, 100)
        return index


def torch_data_loader():
    import torch.utils.data

    check_large()
    use_torch(512)
    loader = torch.utils.data.DataLoader(CheckedItems(), num_workers=2, timeout=HANG)
    assert sorted(int(item) for item in loader) == list(range(8))


# Ends of a process


def ends_right_after_a_call():
    check_large()


def ends_while_threads_call():
    """Daemon threads are inside calls when the interpreter goes away."""

    def forever():
        while True:
            check_large()

    for _ in range(2):
        threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.3)


def calls_at_exit():
    import atexit

    atexit.register(lambda: (check_large(), print("checked at exit")))
    check_large()


def calls_at_exit_only():
    """Whatever is set up at the first call is set up while the interpreter is going away."""
    import atexit

    import fge  # noqa: F401

    atexit.register(lambda: (check_large(), print("checked at exit")))


def exits_with(code):
    check_large()
    sys.exit(int(code))


# Threads


def in_threads(works):
    """Run each function in a thread of its own, all at once."""
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "\n".join(failures)


def blas_settings():
    """(library, number of threads) of every pool that threadpoolctl knows."""
    import threadpoolctl

    return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info())


def concurrent_callers():
    import fge

    # The first call may bring in libraries, whose settings are compared afterwards.
    check()
    before = blas_settings(), fge.get_num_threads()
    shapes = [
        (300, 40, 200),
        (1, 64, 500),
        (64, 64, 1),
        (33, 17, 129),
        (128, 64, 128),
        (5, 1, 7),
        (0, 4, 4),
        (90, 64, 90),
    ]
    dtypes = ("float32", "float64", "float16", "bfloat16")

    def caller(position):
        for turn in range(25):
            check(*shapes[(position + turn) % len(shapes)], dtypes[turn % 4])

    in_threads([lambda position=position: caller(position) for position in range(8)])
    assert (blas_settings(), fge.get_num_threads()) == before


def concurrent_settings():
    """Threads that change the number of threads while others call: any number is right, none may hang."""
    import fge

    def changer():
        for turn in range(300):
            fge.set_num_threads(1 + turn % 4)

    in_threads([changer, *[lambda: [check(128, 32, 100 + i) for i in range(20)]] * 3])
    fge.set_num_threads(None)


def small_stacks():
    threading.stack_size(256 * 1024)
    in_threads([check_large, lambda: check(300, 64, 300, "bfloat16"), lambda: check(300, 64, 300, "float64")])


def default_threads(expected):
    import fge

    assert fge.get_num_threads() == int(expected), fge.get_num_threads()
    check()


def default_threads_on_one_cpu():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    default_threads(1)


def default_threads_with_a_quota(version):
    """In a mount namespace of its own, where the control groups' files are of our making: a quota of one CPU."""
    root = "/sys/fs/cgroup"
    os.system(f"mount -t tmpfs tmpfs {root}")
    files = {
        "v2": {"cpu.max": "100000 100000\n"},
        "v1": {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"},
    }
    for name, contents in files[version].items():
        os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        with open(f"{root}/{name}", "w") as file:
            file.write(contents)
    default_threads(1)


def survives_odd_settings():
    check()


def many_more_threads_than_cpus():
    import fge

    with fge.threads(64):
        check_large()


def settings_stay_apart(other):
    """Our number of threads and that of BLAS, torch and Paddle don't change one another."""
    import threadpoolctl

    import fge

    library = importlib.import_module(other)
    numbers = {"torch": lambda: library.get_num_threads(), "numpy": lambda: None}[other]
    check_large()
    before = blas_settings(), numbers()
    with fge.threads(1):
        check_large()
        assert (blas_settings(), numbers()) == before
    fge.set_num_threads(3)
    check_large()
    assert (blas_settings(), numbers()) == before
    with threadpoolctl.threadpool_limits(1):
        assert fge.get_num_threads() == 3
        check_large()
    if other == "torch":
        library.set_num_threads(1)
    assert fge.get_num_threads() == 3
    check_large()


def alternates(imports):
    """Operators of another library and ours in turn, a thousand times."""
    import_all(imports)
    import numpy as np

    import fge

    x = np.ones((64, 48), np.float32)
    y = np.ones((48, 80), np.float32)
    if "torch" in imports:
        import torch

        a, b = torch.from_numpy(x), torch.from_numpy(y)
        multiply = torch.mm
    else:
        import paddle

        a, b = paddle.to_tensor(x), paddle.to_tensor(y)
        multiply = paddle.mm
    for _ in range(1000):
        other = multiply(a, b)
        out, _ = fge.fused_gemm_epilogue(x, y, activation="relu")
    assert (other.numpy() == 48).all() and (out == 48).all()
    check_large()
    assert (multiply(a, b).numpy() == 48).all()


def releases_the_interpreter():
    """Another thread runs while a call is under way, though nobody is ever asked to yield."""
    import numpy as np

    import fge

    sys.setswitchinterval(1000)
    x = np.ones((1500, 1500))
    fge.fused_gemm_epilogue(x[:100], x)
    inside, finished = threading.Event(), []

    def call():
        inside.set()
        for _ in range(3):
            fge.fused_gemm_epilogue(x, x)
        finished.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait()
    seen_unfinished = not finished
    thread.join()
    assert seen_unfinished, "the interpreter was held from the start of the calls to their end"


def interrupted():
    """Ctrl-C is heard after the call, and the process is as good as before."""
    import numpy as np

    import fge

    # A shell has its background jobs ignore it, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = np.ones((512, 512), np.float32)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            out, _ = fge.fused_gemm_epilogue(x, x)
            assert out[-1, -1] == 512
    except KeyboardInterrupt:
        pass
    check_large()


# Limits


def no_new_threads(first_call):
    """RLIMIT_NPROC is used up, before the first call or after it."""
    import resource

    import fge  # noqa: F401

    if first_call == "after":
        check_large()
    if os.geteuid() == 0:  # the limit doesn't bind root
        os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    try:
        threading.Thread(target=lambda: None).start()
        raise SystemExit("the limit has no effect here")
    except RuntimeError:
        pass

    for threads in (2, 8):
        fge.set_num_threads(threads)
        check_large()


def address_space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def little_memory(first_call, megabytes):
    """Calls under a low RLIMIT_AS are right or raise MemoryError, and the next small one works."""
    import resource

    import numpy as np

    import fge

    x, y = np.ones((2048, 8), np.float32), np.ones((8, 65536), np.float32)
    if first_call == "after":
        check_large()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + (int(megabytes) << 20), before[1]))
    try:
        fge.fused_gemm_epilogue(x, y, activation="relu")  # half a gigabyte
        raise AssertionError("the limit has no effect here")
    except MemoryError:
        pass
    for size in (16, 256, 1024):
        try:
            check(size, 64, size)
        except MemoryError:
            pass
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert (x == 1).all() and (y == 1).all()
    check_large()


# Memory

MEBIBYTE = 1 << 20
# Panels, tiles and stacks of a few threads. The smallest array that must not exist, M*N of a half type, takes 64 MiB.
SCRATCH = 16 * MEBIBYTE


def status_of_process(field):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


def numpy_dtype(name):
    import numpy as np

    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def filled(shape, dtype, value):
    """An array whose every page is resident, made without a temporary."""
    import numpy as np

    array = np.empty(shape, dtype)
    array.fill(value)
    return array


def assert_peak(call):
    """Beyond the arrays that `call` returns, the process grows by no more than SCRATCH meanwhile."""
    import tracemalloc

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is counted from here
    before = status_of_process("VmRSS")
    tracemalloc.start()
    outputs = {id(array): array for array in call() if array is not None}
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    grown = status_of_process("VmHWM") - before
    size = sum(output.nbytes for output in outputs.values())
    figures = f"outputs {size >> 20} MiB, resident peak +{grown >> 20} MiB, traced peak {traced >> 20} MiB"
    assert grown <= size + SCRATCH, figures
    assert traced <= size + MEBIBYTE, figures
    assert grown >= size - SCRATCH, f"the measurement misses the outputs themselves: {figures}"
    print(figures)


TALL = (8192, 64, 4096)
WARM_UP_ROWS = 256


def tall_operands(dtype, trans_x, trans_y):
    m, k, n = TALL
    x = filled((k, m) if trans_x else (m, k), dtype, 1)
    return (
        x,
        x[:, :WARM_UP_ROWS] if trans_x else x[:WARM_UP_ROWS],
        filled((n, k) if trans_y else (k, n), dtype, 1),
    )


def forward_peak(dtype, activation, flags, save_reserve):
    import fge

    dtype, trans_x, trans_y = numpy_dtype(dtype), flags[0] == "T", flags[1] == "T"
    x, first_rows, y = tall_operands(dtype, trans_x, trans_y)
    arguments = y, filled((TALL[2],), dtype, -60), trans_x, trans_y, activation
    options = dict(save_reserve=save_reserve == "True")
    fge.fused_gemm_epilogue(first_rows, *arguments, **options)
    assert_peak(lambda: fge.fused_gemm_epilogue(x, *arguments, **options))


def backward_peak(dtype, activation, flags, needs):
    import fge

    dtype, trans_x, trans_y = numpy_dtype(dtype), flags[0] == "T", flags[1] == "T"
    m, _, n = TALL
    x, first_rows, y = tall_operands(dtype, trans_x, trans_y)
    out_grad = filled((m, n), dtype, 1)
    if activation == "none":
        reserve = few = None
    else:
        reserve = filled((m, n // 8), "uint8", 0x55) if activation == "relu" else filled((m, n), dtype, 0.5)
        few = reserve[:WARM_UP_ROWS]
    options = dict(needs=tuple(letter == "1" for letter in needs))
    arguments = trans_x, trans_y, activation
    fge.fused_gemm_epilogue_grad(first_rows, y, few, out_grad[:WARM_UP_ROWS], *arguments, **options)
    assert_peak(lambda: fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, *arguments, **options))


def memory_stays_flat():
    """Calls of mixed sizes and dtypes, right ones and failing ones, leave nothing behind."""
    import numpy as np

    import fge

    dtypes = [numpy_dtype(name) for name in ("float32", "float64", "float16", "bfloat16")]
    shapes = [(m, k, n) for m in (1, 17, 130) for k in (0, 1, 40) for n in (1, 33, 257)]
    problems = [
        (np.ones((m, k), dtype), np.ones((k, n), dtype), np.ones((m, n), dtype))
        for m, k, n in shapes
        for dtype in dtypes
    ]

    def round_of_calls():
        for x, y, grad in problems:
            _, reserve = fge.fused_gemm_epilogue(x, y, activation="gelu")
            fge.fused_gemm_epilogue_grad(x, y, reserve, grad, activation="gelu")
            try:
                fge.fused_gemm_epilogue(x, y, grad)
            except ValueError:
                pass

    for _ in range(20):
        round_of_calls()
    before = status_of_process("VmRSS")
    for _ in range(310):  # 100,440 calls
        round_of_calls()
    grown = status_of_process("VmRSS") - before
    assert grown < 2 * MEBIBYTE, f"grown by {grown >> 10} KiB"


def failing_calls_keep_no_references():
    """A hundred thousand calls that raise, each after other checks than the last."""
    import numpy as np

    import fge

    x, y = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    bias, out, grad = np.ones(5, np.float32), np.zeros((3, 5), np.float32), np.ones((3, 5), np.float32)
    arrays = x, y, bias, out, grad
    forward, backward = fge.fused_gemm_epilogue, fge.fused_gemm_epilogue_grad
    wrong_calls = (
        lambda: forward(x, y, grad),
        lambda: forward(x, x),
        lambda: forward(x, y, bias, activation="no such"),
        lambda: forward(x, y, bias, out=x),
        lambda: forward(x, y, bias, out=out.T),
        lambda: backward(x, y, None, grad, activation="relu"),
        lambda: backward(x, y, grad, grad, activation="relu"),
        lambda: backward(x, y, None, bias),
        lambda: backward(x, y, None, grad, accumulate_into=(out, None, None)),
        lambda: backward(x, y, None, grad, x_activation="gelu", x_reserve=grad),
    )
    counts = [sys.getrefcount(array) for array in arrays]
    for _ in range(10_000):
        for wrong_call in wrong_calls:
            try:
                wrong_call()
            except (TypeError, ValueError):
                continue
            raise AssertionError("a wrong call was accepted")
    assert [sys.getrefcount(array) for array in arrays] == counts
    check()


def result_past_two_gigabytes(activation):
    """M * N over 2^31: offsets must not wrap, of elements nor of bits. K = 1 spares the time."""
    import numpy as np

    import fge

    size = 46341
    x, y = np.zeros((size, 1), np.float16), np.zeros((1, size), np.float16)
    x[-1], x[0], y[0, -1], y[0, 0] = 2, 5, 3, 7
    out, reserve = fge.fused_gemm_epilogue(x, y, activation=activation, save_reserve=activation == "relu")
    corners = {(-1, -1): 6, (0, 0): 35, (0, -1): 15, (-1, 0): 14}
    for corner, value in corners.items():
        assert out[corner] == value
    assert np.count_nonzero(out) == 4
    if activation == "relu":
        assert np.bitwise_count(reserve).sum() == 4
        assert reserve[-1, (size - 1) // 8] == 1 << (size - 1) % 8
        assert reserve[-1, 0] == 1
    del out
    out_grad = np.broadcast_to(np.ones(1, np.float16), (size, size))
    x_grad, y_grad, bias_grad = fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation=activation)
    if activation == "relu":
        assert [float(x_grad[0, 0]), float(x_grad[-1, 0])] == [10, 10] and np.count_nonzero(x_grad) == 2
        assert [float(y_grad[0, 0]), float(y_grad[0, -1])] == [7, 7] and np.count_nonzero(y_grad) == 2
        assert float(bias_grad[-1]) == 2
    else:
        assert (x_grad == 10).all() and (y_grad == 7).all()
        assert (bias_grad == np.float16(size)).all()


def far_apart_rows():
    """A leading dimension over 2^31 - 1 elements, of inputs, out, reserve and gradients: most of the memory is never touched."""
    import numpy as np

    import fge

    apart = 2**31 + 5

    def two_far_rows(columns):
        room = np.zeros(apart + columns, np.float16)
        return np.lib.stride_tricks.as_strided(room, (2, columns), (2 * apart, 2))

    rng = np.random.default_rng(0)
    for trans in (False, True):
        x, y, out, grad = two_far_rows(2), two_far_rows(70), two_far_rows(70), two_far_rows(70)
        x[...], y[...], grad[...] = (rng.integers(-3, 4, a.shape) for a in (x, y, grad))
        if trans:
            x = x.T
        plain = [np.ascontiguousarray(a) for a in (x, y, grad)]
        _, reserve = fge.fused_gemm_epilogue(x, y, trans_x=trans, activation="relu", out=out)
        right, right_reserve = fge.fused_gemm_epilogue(*plain[:2], trans_x=trans, activation="relu")
        assert np.array_equal(out, right) and np.array_equal(reserve, right_reserve)
        into = two_far_rows(2), two_far_rows(70), np.zeros(70, np.float16)
        fge.fused_gemm_epilogue_grad(x, y, reserve, grad, trans, activation="relu", accumulate_into=into)
        expected = fge.fused_gemm_epilogue_grad(*plain[:2], reserve, plain[2], trans, activation="relu")
        for got, one in zip(into, expected):
            assert np.array_equal(got, one)


def rows_past_two_gigabytes(dtype, k):
    """K of so many elements that a row is over 2^31 - 1 bytes, or elements."""
    import numpy as np

    import fge

    k, dtype = int(k), numpy_dtype(dtype)
    x, y = np.zeros((1, k), dtype), np.zeros((k, 1), dtype)
    for at, (a, b) in {0: (3, 5), k // 2: (2, 7), k - 1: (4, 1)}.items():
        x[0, at], y[at, 0] = a, b
    out, reserve = fge.fused_gemm_epilogue(x, y, np.ones(1, dtype), activation="relu")
    assert float(out[0, 0]) == 34
    one = np.ones((1, 1), dtype)
    x_grad, y_grad, bias_grad = fge.fused_gemm_epilogue_grad(x, y, reserve, one, activation="relu")
    assert float(bias_grad[0]) == 1
    for grad, other in ((x_grad, y), (y_grad, x)):
        assert np.array_equal(grad.ravel(), other.ravel())


def denormals_that_the_process_turned_off():
    """A thread that flushes denormals, as after loading a library of -ffast-math, gets the bits of one that doesn't,
    for every number of threads; and it goes on flushing.
    """
    import ctypes
    import shutil
    import subprocess
    import tempfile

    import numpy as np

    import fge

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("no compiler")
        return
    with tempfile.TemporaryDirectory() as directory:
        source = f"{directory}/flush.c"
        with open(source, "w") as file:
            file.write(
                "#include <xmmintrin.h>\nunsigned get(void) { return _mm_getcsr(); }\n"
                "void set(unsigned v) { _mm_setcsr(v); }\n"
            )
        subprocess.run([compiler, "-shared", "-fPIC", "-o", f"{directory}/flush.so", source], check=True)
        flush = ctypes.CDLL(f"{directory}/flush.so")

    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 33)).astype(np.float32) * np.float32(1e-20)
    y = rng.standard_normal((33, 70)).astype(np.float32) * np.float32(1e-20)
    out_grad = rng.standard_normal((700, 70)).astype(np.float32) * np.float32(1e-20)

    def results():
        found = []
        for engine in fge.engines():
            for isa in fge.isas():
                for threads in (1, 2, 3):
                    with fge.engine(engine), fge.isa(isa), fge.threads(threads):
                        out, reserve = fge.fused_gemm_epilogue(x, y, activation="gelu")
                        found += [
                            out,
                            *fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation="gelu"),
                        ]
                        found += [
                            fge.fused_gemm_epilogue(x[:1], y)[0],
                            fge.fused_glu(x, y, y, save_reserve=False)[0],
                        ]
        return [array.tobytes() for array in found]

    expected = results()
    largest = np.abs(np.frombuffer(expected[0], np.float32)).max()
    assert 0 < largest < np.finfo(np.float32).tiny  # denormals all
    before = flush.get()
    flush.set(before | 0x8040)
    try:
        found = results()
        assert flush.get() & 0x8040 == 0x8040
    finally:
        flush.set(before)
    assert found == expected


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
