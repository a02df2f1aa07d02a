"""A known load on GPUs, through CUDA's driver API by ctypes: no toolkit, no packages.

    python load.py SECONDS DUTY MEMORY_MIB      # on each GPU that CUDA_VISIBLE_DEVICES leaves
    python load.py --sees                       # only prints their UUIDs

DUTY is the fraction of time, 0 to 1, in which a kernel runs. The first line of output is a JSON array of the UUIDs,
without `GPU-` or `MIG-`; the load has begun when it is printed.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
import uuid

PTX = """
.version 6.3
.target {target}
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 rounds)
{{
    .reg .f32 %f<6>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    .reg .pred %p;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f1, %r2;
    mov.f32 %f2, %f1;
    mov.f32 %f3, %f1;
    mov.f32 %f4, %f1;
    mov.u32 %r3, 0;
LOOP:
    fma.rn.f32 %f1, %f1, 0f3F7FFFF0, 0f3F000000;
    fma.rn.f32 %f2, %f2, 0f3F7FFFF1, 0f3F000000;
    fma.rn.f32 %f3, %f3, 0f3F7FFFF2, 0f3F000000;
    fma.rn.f32 %f4, %f4, 0f3F7FFFF3, 0f3F000000;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p, %r3, %r1;
    @%p bra LOOP;
    add.f32 %f1, %f1, %f2;
    add.f32 %f3, %f3, %f4;
    add.f32 %f1, %f1, %f3;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd2, %rd2, %rd3;
    st.global.f32 [%rd2], %f1;
    ret;
}}
"""
TARGETS = ("sm_75", "sm_50")
"""Virtual architectures to try: drivers compile them for any newer GPU; the second is for GPUs before Turing."""
THREADS = 256
MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
KERNEL_SECONDS = 0.02


class CudaError(Exception):
    """A call of the driver failed."""


class Cuda:
    """The driver's functions: `cuda.cuInit(0)` raises CudaError unless it returns CUDA_SUCCESS."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(f"{name}: CUDA error {code}")


def gpus(cuda: Cuda) -> list[tuple[ctypes.c_int, str]]:
    """Return device and UUID of each GPU that this process sees."""
    cuda("cuInit", 0)
    count = ctypes.c_int()
    cuda("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for number in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        cuda("cuDeviceGet", ctypes.byref(device), number)
        cuda("cuDeviceGetUuid_v2", raw, device)  # an instance's own, where the GPU is cut by MIG
        found.append((device, str(uuid.UUID(bytes=bytes(raw)))))
    return found


class Spinner:
    """A context on one GPU, with a kernel that keeps all its multiprocessors busy for a chosen time."""

    def __init__(self, cuda: Cuda, device: ctypes.c_int, memory: int) -> None:
        self._cuda = cuda
        self._context, module = ctypes.c_void_p(), ctypes.c_void_p()
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        cuda("cuCtxSetCurrent", self._context)
        for target in TARGETS:
            try:
                cuda("cuModuleLoadData", ctypes.byref(module), PTX.format(target=target).encode())
                break
            except CudaError:
                if target == TARGETS[-1]:
                    raise
        self._function, self._out, kept = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        cuda("cuModuleGetFunction", ctypes.byref(self._function), module, b"spin")
        cuda("cuMemAlloc_v2", ctypes.byref(self._out), ctypes.c_size_t(4 * THREADS))
        if memory:
            cuda("cuMemAlloc_v2", ctypes.byref(kept), ctypes.c_size_t(memory))
            cuda("cuMemsetD8_v2", kept, ctypes.c_ubyte(1), ctypes.c_size_t(memory))
        processors = ctypes.c_int()
        cuda("cuDeviceGetAttribute", ctypes.byref(processors), MULTIPROCESSORS, device)
        self._blocks = max(1, processors.value) * 8
        self._rounds = 1000
        while self._rounds < 1 << 30 and self.spin() < KERNEL_SECONDS:
            self._rounds *= 2

    def spin(self) -> float:
        """Run the kernel once; return the seconds that it took."""
        started = time.monotonic()
        rounds = ctypes.c_uint32(self._rounds)
        arguments = (ctypes.c_void_p * 2)(
            ctypes.cast(ctypes.byref(self._out), ctypes.c_void_p), ctypes.cast(ctypes.byref(rounds), ctypes.c_void_p)
        )
        self._cuda("cuCtxSetCurrent", self._context)
        self._cuda(
            "cuLaunchKernel", self._function, self._blocks, 1, 1, THREADS, 1, 1, 0, None, arguments, None
        )  # the default stream, without shared memory
        self._cuda("cuCtxSynchronize")
        return time.monotonic() - started


def main(seconds: float, duty: float, mebibytes: int) -> None:
    """Load every visible GPU in turn, each for its share of the time; several GPUs want one process each."""
    cuda = Cuda()
    seen = gpus(cuda)
    spinners = [Spinner(cuda, device, mebibytes * 1024**2) for device, _ in seen]
    print(json.dumps([name for _, name in seen]), flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for spinner in spinners:
            busy = spinner.spin() if duty else KERNEL_SECONDS
            time.sleep(busy * (1 - duty) / duty if duty else busy)


if __name__ == "__main__":
    if sys.argv[1:] == ["--sees"]:
        print(json.dumps([name for _, name in gpus(Cuda())]), flush=True)
    else:
        main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
