/* Loaded before the C library: the n-th write, fsync, rename, removal or new folder below a folder kills the process, in
 * the middle of the write if it is one, or finds the disk full from there on. Built by test_resume.py, armed by faults.py. */
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
static int full;

void faults_arm(const char *folder, long n, int disk_full)
{
    snprintf(under, sizeof under, "%s", folder);
    at = n, full = disk_full, count = 0;
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

static int due(void) { return ++count >= at; }

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
    ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (below_fd(fd) && due()) {
        if (full) return no_space();
        real(fd, data, n / 2);
        die();
    }
    return real(fd, data, n);
}

int fsync(int fd)
{
    if (below_fd(fd) && due()) {
        if (full) return no_space();
        die();
    }
    return below_fd(fd) ? 0 : REAL(fsync, int)(fd); /* what a killed process wrote is there without it */
}

int rename(const char *from, const char *to)
{
    if (below(to) && due() && !full) die();
    return REAL(rename, const char *, const char *)(from, to);
}

int unlink(const char *path)
{
    if (below(path) && due() && !full) die();
    return REAL(unlink, const char *)(path);
}

int unlinkat(int fd, const char *path, int flags)
{
    if (below_fd(fd) && due() && !full) die();
    return REAL(unlinkat, int, const char *, int)(fd, path, flags);
}

int rmdir(const char *path)
{
    if (below(path) && due() && !full) die();
    return REAL(rmdir, const char *)(path);
}

int mkdir(const char *path, mode_t mode)
{
    if (below(path) && due() && !full) die();
    return REAL(mkdir, const char *, mode_t)(path, mode);
}
