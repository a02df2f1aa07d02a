/* A stand-in for libcuda.so.1, for the test of run.py: kernels sleep for 20 ms. A process that makes a context leaves a
 * file PID-INDEX in the directory USERS, by which the test makes the stand-in NVML show it. GPUs are those of
 * CUDA_VISIBLE_DEVICES, named as the stand-in NVML names them: GPU-<index in hex>-0000-4000-8000-000000000000. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int seen[64], count;

int cuInit(unsigned flags)
{
    char *all = strdup(getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "");
    (void)flags;
    count = 0;
    for (char *name = strtok(all, ","); name; name = strtok(NULL, ","))
        seen[count++] = (int)strtol(name + strlen("GPU-"), NULL, 16);
    free(all);
    return 0;
}

int cuDeviceGetCount(int *found) { *found = count; return 0; }
int cuDeviceGet(int *device, int number) { *device = seen[number]; return 0; }

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    const unsigned char rest[] = { 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0 };
    for (int i = 0; i < 4; i++)
        uuid[i] = (unsigned char)(device >> (24 - 8 * i));
    memcpy(uuid + 4, rest, sizeof rest);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    char path[4096];
    snprintf(path, sizeof path, USERS "/%d-%d", getpid(), device);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    *context = (void *)1;
    return 0;
}

int cuCtxSetCurrent(void *context) { (void)context; return 0; }
/* like a driver that no longer takes the first target */
int cuModuleLoadData(void **module, const char *text) { *module = (void *)1; return strstr(text, "sm_50") ? 0 : 209; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    *function = (void *)1;
    return strcmp(name, "spin") ? 500 : 0;
}
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) { *address = 4096; return bytes ? 0 : 1; }
int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t bytes) { (void)value; (void)bytes; return address != 4096; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; *value = 132; return attribute != 16; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra)
{
    (void)stream;
    return !(function && gx == 132 * 8 && gy == 1 && gz == 1 && bx == 256 && by == 1 && bz == 1 && !shared && !extra &&
             **(unsigned long long **)arguments == 4096 && *(unsigned *)arguments[1] >= 1000);
}
int cuCtxSynchronize(void) { usleep(20000); return 0; }
