/* Preloaded library that records what a process and its children change below a directory, in order.

   RECORD_ROOT is the directory, an absolute path without links; RECORD_LOG the file that records are appended to.
   A record is a line "operation pid inode number length length length" and the bytes of two paths and the data.
   What a process writes to its standard output is recorded too: it is what the process acknowledges.
   With RECORD_KILL the process is killed before its n-th change. What is not understood is recorded as "unknown",
   so that no change passes unseen. Permissions and times are not recorded. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int changes;

static const char *root(void) {
    const char *found = getenv("RECORD_ROOT");
    return found && getenv("RECORD_LOG") ? found : NULL;
}

static int is_below(const char *path) {
    size_t length = root() ? strlen(root()) : 0;
    return length && !strncmp(path, root(), length) && (path[length] == '/' || !path[length]);
}

/* Path of an open file, without links; empty if it is not below the root. */
static void path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    if (!is_below(path)) path[0] = 0;
}

/* Path of a name, whose directory must exist; empty if it is not below the root. */
static void full_path(int at, const char *name, char *path) {
    char folder[PATH_MAX];
    path[0] = 0;
    if (!root() || strlen(name) >= PATH_MAX - 2) return;
    strcpy(folder, name);
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/') folder[--end] = 0;
    char *slash = strrchr(folder, '/');
    char base[PATH_MAX];
    strcpy(base, slash ? slash + 1 : folder);
    if (slash == folder) strcpy(folder, "/");
    else if (slash) *slash = 0;
    else strcpy(folder, ".");
    int fd = syscall(SYS_openat, at, folder, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) return;
    path_of(fd, path);
    syscall(SYS_close, fd);
    if (path[0] && strlen(path) + strlen(base) + 2 < PATH_MAX) strcat(strcat(path, "/"), base);
}

static int begin(void) {
    int before = errno;
    int log = syscall(SYS_openat, AT_FDCWD, getenv("RECORD_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log < 0) abort();
    while (flock(log, LOCK_EX)) if (errno != EINTR) abort();
    errno = before;
    return log;
}

static int change(void) {
    const char *end = getenv("RECORD_KILL");
    if (end && atomic_fetch_add(&changes, 1) + 1 == atoi(end)) kill(getpid(), SIGKILL);
    return begin();
}

static void end(int log) {
    int before = errno;
    syscall(SYS_close, log);
    errno = before;
}

static void note(int log, const char *what, unsigned long long inode, long long number, const char *one,
                 const char *two, const void *data, size_t size) {
    int before = errno;
    char head[160];
    int length = snprintf(head, sizeof head, "%s %d %llu %lld %zu %zu %zu\n", what, (int)getpid(), inode, number,
                          strlen(one), strlen(two), size);
    struct iovec parts[] = {
        {head, length}, {(char *)one, strlen(one)}, {(char *)two, strlen(two)}, {(void *)data, size}};
    if (syscall(SYS_writev, log, parts, 4) != (ssize_t)(length + strlen(one) + strlen(two) + size)) abort();
    errno = before;
}

static void note_unknown(const char *call, const char *path) {
    int log = begin();
    note(log, "unknown", 0, 0, call, path, NULL, 0);
    end(log);
}

/* Whether an open file is a regular one, or a directory, below the root. */
static int is_watched(int fd, struct stat *status, char *path) {
    int before = errno, found = 0;
    if (root() && !fstat(fd, status) && (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) {
        path_of(fd, path);
        found = path[0] != 0;
    }
    errno = before;
    return found;
}

static int opened(int at, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat before, after;
    path[0] = 0;
    if ((flags & (O_CREAT | O_TRUNC)) && !(flags & O_PATH)) full_path(at, name, path);
    if (!path[0]) {
        int fd = syscall(SYS_openat, at, name, flags, mode);
        if (fd >= 0 && (flags & O_TMPFILE) == O_TMPFILE && is_watched(fd, &before, path)) note_unknown("tmpfile", path);
        return fd;
    }
    int log = change();
    int is_new = fstatat(at, name, &before, 0) != 0;
    int fd = syscall(SYS_openat, at, name, flags, mode);
    if (fd >= 0 && !fstat(fd, &after) && S_ISREG(after.st_mode)) {
        if (is_new) note(log, "create", after.st_ino, 0, path, "", NULL, 0);
        else if ((flags & O_TRUNC) && before.st_size) note(log, "truncate", after.st_ino, 0, path, "", NULL, 0);
    }
    end(log);
    return fd;
}

#define OPEN(at, name, flags)                                   \
    va_list rest;                                               \
    va_start(rest, flags);                                      \
    mode_t mode = (flags) & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                               \
    return opened(at, name, flags, mode)
int open(const char *name, int flags, ...) { OPEN(AT_FDCWD, name, flags); }
int open64(const char *name, int flags, ...) { OPEN(AT_FDCWD, name, flags); }
int openat(int at, const char *name, int flags, ...) { OPEN(at, name, flags); }
int openat64(int at, const char *name, int flags, ...) { OPEN(at, name, flags); }
int creat(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    struct stat status;
    if (fd == 1 && root() && !fstat(fd, &status) && S_ISFIFO(status.st_mode)) {
        int log = begin();
        note(log, "out", 0, 0, "", "", data, size);
        end(log);
    }
    if (!is_watched(fd, &status, path)) return syscall(SYS_write, fd, data, size);
    int log = change();
    int is_appended = fcntl(fd, F_GETFL) & O_APPEND;
    fstat(fd, &status);
    long long at = is_appended ? status.st_size : lseek(fd, 0, SEEK_CUR);
    ssize_t done = syscall(SYS_write, fd, data, size);
    if (done > 0) note(log, "write", status.st_ino, at, path, "", data, done);
    end(log);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    char path[PATH_MAX];
    struct stat status;
    if (!is_watched(fd, &status, path)) return syscall(SYS_pwrite64, fd, data, size, at);
    int log = change();
    ssize_t done = syscall(SYS_pwrite64, fd, data, size, at);
    if (done > 0) note(log, "write", status.st_ino, at, path, "", data, done);
    end(log);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    struct stat status;
    if (is_watched(fd, &status, path)) note_unknown("writev", path);
    return syscall(SYS_writev, fd, parts, count);
}

int ftruncate64(int fd, off64_t length) {
    char path[PATH_MAX];
    struct stat status;
    if (!is_watched(fd, &status, path)) return syscall(SYS_ftruncate, fd, length);
    int log = change();
    int done = syscall(SYS_ftruncate, fd, length);
    if (!done) note(log, "truncate", status.st_ino, length, path, "", NULL, 0);
    end(log);
    return done;
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }
int truncate64(const char *name, off64_t length) {
    char path[PATH_MAX];
    full_path(AT_FDCWD, name, path);
    if (path[0]) note_unknown("truncate", path);
    return syscall(SYS_truncate, name, length);
}
int truncate(const char *name, off_t length) { return truncate64(name, length); }

static int synced(int fd, long call) {
    char path[PATH_MAX];
    struct stat status;
    if (!is_watched(fd, &status, path)) return syscall(call, fd);
    int log = change();
    int done = syscall(call, fd);
    if (!done) note(log, "sync", status.st_ino, 0, path, "", NULL, 0);
    end(log);
    return done;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }
void sync(void) {
    if (!root()) {
        syscall(SYS_sync);
        return;
    }
    int log = change(); /* what is recorded counts as synced; the machine of the test is spared */
    note(log, "syncall", 0, 0, "", "", NULL, 0);
    end(log);
}
int syncfs(int fd) {
    char path[PATH_MAX];
    struct stat status;
    if (is_watched(fd, &status, path)) note_unknown("syncfs", path);
    return syscall(SYS_syncfs, fd);
}

/* A change of one or two names. `inode_of` tells the inode of a new directory. */
static int renamed(const char *what, int at, const char *from, int to_at, const char *to, long call, int flags) {
    char one[PATH_MAX], two[PATH_MAX];
    full_path(at, from, one);
    full_path(to_at, to, two);
    if (!one[0] && !two[0]) return syscall(call, at, from, to_at, to, flags);
    if (!one[0] || !two[0] || (call == SYS_renameat2 && flags)) note_unknown(what, one[0] ? one : two);
    int log = change();
    int done = syscall(call, at, from, to_at, to, flags);
    if (!done) note(log, what, 0, 0, one, two, NULL, 0);
    end(log);
    return done;
}
int rename(const char *from, const char *to) {
    return renamed("rename", AT_FDCWD, from, AT_FDCWD, to, SYS_renameat2, 0);
}
int renameat(int at, const char *from, int to_at, const char *to) {
    return renamed("rename", at, from, to_at, to, SYS_renameat2, 0);
}
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) {
    return renamed("rename", at, from, to_at, to, SYS_renameat2, flags);
}
int link(const char *from, const char *to) { return renamed("link", AT_FDCWD, from, AT_FDCWD, to, SYS_linkat, 0); }
int linkat(int at, const char *from, int to_at, const char *to, int flags) {
    return renamed("link", at, from, to_at, to, SYS_linkat, flags);
}

int mkdirat(int at, const char *name, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    full_path(at, name, path);
    if (!path[0]) return syscall(SYS_mkdirat, at, name, mode);
    int log = change();
    int done = syscall(SYS_mkdirat, at, name, mode);
    if (!done && !fstatat(at, name, &status, 0)) note(log, "mkdir", status.st_ino, 0, path, "", NULL, 0);
    end(log);
    return done;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int unlinkat(int at, const char *name, int flags) {
    char path[PATH_MAX];
    full_path(at, name, path);
    if (!path[0]) return syscall(SYS_unlinkat, at, name, flags);
    int log = change();
    int done = syscall(SYS_unlinkat, at, name, flags);
    if (!done) note(log, "unlink", 0, 0, path, "", NULL, 0);
    end(log);
    return done;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) { return unlink(name) && errno == EISDIR ? rmdir(name) : 0; }

/* Programs are recorded whatever environment they are given. */
int execve(const char *program, char *const words[], char *const given[]) {
    static const char *const names[] = {"LD_PRELOAD", "RECORD_ROOT", "RECORD_LOG"};
    int count = 0, has = 0;
    while (given && given[count]) has |= !strncmp(given[count++], "RECORD_LOG=", 11);
    char *with[count + 4];
    char own[3][PATH_MAX + 16];
    memcpy(with, given, count * sizeof *with);
    for (int each = 0; each < 3 && !has && root(); each++) {
        snprintf(own[each], sizeof own[each], "%s=%s", names[each], getenv(names[each]) ? getenv(names[each]) : "");
        with[count++] = own[each];
    }
    with[count] = NULL;
    return syscall(SYS_execve, program, words, with);
}
int execv(const char *program, char *const words[]) { return execve(program, words, environ); }

/* Copies inside the kernel: refused, so that the program copies by reading and writing. */
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    char path[PATH_MAX];
    struct stat status;
    if (!is_watched(to, &status, path)) return syscall(SYS_sendfile, to, from, at, size);
    errno = EINVAL;
    return -1;
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) { return sendfile64(to, from, at, size); }
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t size, unsigned flags) {
    char path[PATH_MAX];
    struct stat status;
    if (!is_watched(to, &status, path)) return syscall(SYS_copy_file_range, from, at, to, to_at, size, flags);
    errno = ENOSYS;
    return -1;
}

int fallocate64(int fd, int mode, off64_t at, off64_t size) {
    char path[PATH_MAX];
    struct stat status;
    /* what is punched out, or only reserved, has no content */
    if (is_watched(fd, &status, path) && !(mode & FALLOC_FL_KEEP_SIZE)) note_unknown("fallocate", path);
    return syscall(SYS_fallocate, fd, mode, at, size);
}
int fallocate(int fd, int mode, off_t at, off_t size) { return fallocate64(fd, mode, at, size); }

void *mmap64(void *where, size_t size, int protection, int flags, int fd, off64_t at) {
    char path[PATH_MAX];
    struct stat status;
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && is_watched(fd, &status, path))
        note_unknown("mmap", path);
    return (void *)syscall(SYS_mmap, where, size, protection, flags, fd, at);
}
void *mmap(void *where, size_t size, int protection, int flags, int fd, off_t at) {
    return mmap64(where, size, protection, flags, fd, at);
}
