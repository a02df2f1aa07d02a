"""Errors in the output of a job: realistic lines of the programs that write them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.log_errors import error_in, kinds_of_errors
from tests.cases import cases

ERRORS = {
    "out of memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity)",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while allocating 17179869184 bytes.",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array",
        "MemoryError",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch.",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.0. Some of your processes may have been killed",
        "Out of memory: Killed process 31337 (python) total-vm:98304000kB, anon-rss:66060288kB",
        "[  812.3] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=docker-1f.scope,mems_allowed=0-1",
    ),
    "NCCL": (
        "node1:4711:4790 [2] NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129",
        "node1:88:112 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<43215> failed",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "[rank3]:[E120 10:02:04 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout",
    ),
    "CUDA": (
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "../cuda/Loss.cu:245: nll_loss: block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
        "CUDA error: no kernel image is available for execution on the device",
        "Failed to initialize NVML: Unknown Error",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
        "E0000 00:00:1732183324.1 4711 cuda_executor.cc:1228] INTERNAL: CUDA Runtime error: CUDA_ERROR_ILLEGAL_ADDRESS",
    ),
    "crash": (
        "Segmentation fault (core dumped)",
        "Fatal Python error: Segmentation fault",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "terminate called after throwing an instance of 'c10::Error'",
        '*** Aborted at 1732183324 (unix time) try "date -d @1732183324" if you are using GNU date ***',
        "double free or corruption (!prev)",
    ),
    "traceback": (
        "Traceback (most recent call last):",
        "[rank0]: Traceback (most recent call last):",
        "  | Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ),
    "killed": (
        "Killed",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
        "E1121 10:02:04.123000 4711 api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 4790)",
        "slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-21T10:02:04 DUE TO TIME LIMIT ***",
    ),
    "exit": (
        "srun: error: node1: task 0: Exited with exit code 1",
        "subprocess.CalledProcessError: Command '['make']' returned non-zero exit status 2.",
        "The process finished with exit code 137",
        "make: *** [train] exited with status 2",
        "  exitcode  : 1 (pid: 4711)",
    ),
    "error": (
        "ValueError: too many values to unpack (expected 2)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "[rank0]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x768 and 512x10)",
        "Error: no such option: --epoch",
        "error: unrecognized arguments: --lr-schedule",
        "KeyboardInterrupt: ",
        "AssertionError",
        "2026-11-21 10:02:04,123 ERROR trainer: loss is nan",
        "[2026-11-21 10:02:04] [CRITICAL] checkpoint is damaged",
        "F1121 10:02:04.123456 4711 tensor.cc:44] Check failed: ok",
        'train.cu(12): error: identifier "blockIdy" is undefined',
        "bash: train.sh: command not found",
        "cat: /data/x: Permission denied",
    ),
}
FINE = (
    "",
    "epoch 12  loss 2.341  lr 2.0e-05  grad_norm 0.81",
    "validation error 0.0213, best so far 0.0201",
    "mean squared error: 0.12",
    "[INFO] 0 errors, 0 warnings",
    "NCCL version 2.21.5+cuda12.4",
    "node1:88:112 [0] NCCL INFO Using network IB",
    "node1:88:112 [0] NCCL INFO NCCL_DEBUG_SUBSYS set by environment to INIT,ENV",
    "torch.cuda.is_available() = True, CUDA 12.4",
    "Max CUDA memory allocated: 71.2 GiB",
    "process exited with code 0",
    "Process finished with exit code 0",
    "exit status 0",
    "saved to /scratch/error_analysis/run.json",
    "signal handler for SIGTERM installed",
    "CUBLAS_STATUS_SUCCESS",
    "memory: 61 % used, 12.1 GiB free",
    "W1121 10:02:04.123456 4711 warn.cc:12] slow disk",
    "skipped 3 samples with exceptions",
    '{"error_rate": 0.01, "fatal": false}',
)


@cases(("kind", "line"), [(kind, line) for kind, lines in ERRORS.items() for line in lines])
def test_errors_are_recognised_and_named(kind: str, line: str) -> None:
    assert error_in(line) is not None
    assert any(name == kind and expression.search(line) for name, expression in kinds_of_errors())


@cases("line", FINE)
def test_harmless_lines_are_no_errors(line: str) -> None:
    assert error_in(line) is None


@given(st.sampled_from([line for lines in ERRORS.values() for line in lines]), st.text(max_size=5))
def test_the_quick_check_misses_no_error(line: str, end: str) -> None:
    assert (error_in(line + end) is not None) == any(
        expression.search(line + end) for _, expression in kinds_of_errors()
    )


def test_every_line_is_checked_quickly() -> None:
    import time

    lines = [
        "error" * 800,
        "\\w." * 1300,
        "Assertion `" * 370,
        "a.b" * 1300 + "Error",
        "NCCL operation " * 270,
        " " * 4096,
    ]
    began = time.process_time()
    for line in lines:
        error_in(f"error {line}")
    assert time.process_time() - began < 0.25
