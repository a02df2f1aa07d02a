/* A clock that jumps and a disk that fails, preloaded into gputui. The file BAD_MACHINE has two numbers of 64 bits, which
 * may change at any time: seconds that are added to the time of day, and how many percent of the writes and syncs of
 * regular files end with EIO, on the file system of the directory BAD_DISK. Half of such writes take a part of the data
 * instead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct now { int64_t seconds, percent; };

static volatile struct now none, *now = &none;
static dev_t disk;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("BAD_MACHINE"), *directory = getenv("BAD_DISK");
    struct stat found;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *read = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (read != MAP_FAILED)
        now = read;
    if (fd >= 0)
        close(fd);
    if (directory && !stat(directory, &found))
        disk = found.st_dev;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += now->seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    at->tv_sec = found.tv_sec;
    at->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    if (at)
        *at = found.tv_sec;
    return found.tv_sec;
}

/* Return 0 if it works, 1 if it fails, 2 if a part of it may work. */
static int how(int fd)
{
    struct stat file;
    uint16_t drawn[2];
    int before = errno, is_bad;
    if (!now->percent)
        return 0;
    is_bad = !fstat(fd, &file) && file.st_dev == disk && S_ISREG(file.st_mode)
        && getrandom(drawn, sizeof drawn, 0) == sizeof drawn && drawn[0] % 100 < now->percent;
    errno = before;
    return is_bad ? 1 + drawn[1] % 2 : 0;
}

static int fail(void)
{
    errno = EIO;
    return -1;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd)
{
    return how(fd) ? fail() : REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    return how(fd) ? fail() : REAL(fdatasync)(fd);
}

ssize_t write(int fd, const void *data, size_t size)
{
    int found = how(fd);
    return found == 1 || (found && size < 2) ? fail() : REAL(write)(fd, data, found ? size / 2 : size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    return how(fd) ? fail() : REAL(pwrite64)(fd, data, size, at);
}
