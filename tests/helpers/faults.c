/* Fault injection, loaded before the C library. Either the n-th write, truncation, fsync, rename,
 * removal or mkdir below a folder kills the process (a write is truncated to half of its data), or
 * the n-th write or fsync and all later ones fail because the disk is full. A call is not counted
 * if the disk has not changed since the previously counted call. Built by test_resume.py, armed by
 * fault_injection.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char under[4096];
static long at, count;
static int full, changed; /* changed: the disk has changed since the last counted call */

void faults_arm(const char *folder, long n, int disk_full)
{
    snprintf(under, sizeof under, "%s", folder);
    at = n, full = disk_full, count = 0, changed = 1;
}

static int below(const char *path) { return at > 0 && strncmp(path, under, strlen(under)) == 0; }

static int below_fd(int fd)
{
    char link[64], path[4096];
    if (at == 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return below(path);
}

static int due(void)
{
    changed = 0;
    return ++count >= at;
}

/* Count a call that can be interrupted by a kill only. Return 1 if the process is killed here. */
static int killed_here(void) { return !full && changed && due(); }

static int noted(int result)
{
    if (result == 0) changed = 1;
    return result;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    pause();
}

static int no_space(void)
{
    errno = ENOSPC;
    return -1;
}

#define REAL(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n)
{
    ssize_t (*real)(int, const void *, size_t) =
        (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (!below_fd(fd)) return real(fd, data, n);
    if (due()) {
        if (full) return no_space();
        real(fd, data, n / 2);
        die();
    }
    changed = 1;
    return real(fd, data, n);
}

int fsync(int fd)
{
    if (below_fd(fd) && full && due()) return no_space();
    if (below_fd(fd) && killed_here()) die();
    /* fsync is skipped below the folder: the data of a killed process survive without it */
    return below_fd(fd) ? 0 : REAL(fsync, int)(fd);
}

int fdatasync(int fd) { return fsync(fd); }

static int truncated(int fd, off_t size)
{
    if (below_fd(fd) && killed_here()) die();
    return noted(REAL(ftruncate, int, off_t)(fd, size));
}

int ftruncate(int fd, off_t size) { return truncated(fd, size); }

int ftruncate64(int fd, off_t size) { return truncated(fd, size); }

int rename(const char *from, const char *to)
{
    if (below(to) && killed_here()) die();
    return noted(REAL(rename, const char *, const char *)(from, to));
}

int unlink(const char *path)
{
    if (below(path) && killed_here()) die();
    return noted(REAL(unlink, const char *)(path));
}

int unlinkat(int fd, const char *path, int flags)
{
    if (below_fd(fd) && killed_here()) die();
    return noted(REAL(unlinkat, int, const char *, int)(fd, path, flags));
}

int rmdir(const char *path)
{
    if (below(path) && killed_here()) die();
    return noted(REAL(rmdir, const char *)(path));
}

int mkdir(const char *path, mode_t mode)
{
    if (below(path) && killed_here()) die();
    return noted(REAL(mkdir, const char *, mode_t)(path, mode));
}
