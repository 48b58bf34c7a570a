/* Preloaded into a server: its wall clock is the machine's with an offset and a gain, read from the file that
 * REDLATCH_TEST_CLOCK names. libfaketime does not start in servers that are built with jemalloc. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* What the file holds: two settings and the number of the one in use, so that none is read while it is written.
 * The machine's clock gains `gain_ppm` millionths from the moment `since` on. */
struct settings {
    long long in_use;
    struct setting {
        long long since_us, offset_us, gain_ppm;
    } of[2];
};

static const volatile struct settings *settings;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("REDLATCH_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof(struct settings), PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) settings = at;
    close(fd);
}

static long long now_us(void) {
    struct timespec real;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    long long us = real.tv_sec * 1000000LL + real.tv_nsec / 1000;
    if (!settings) return us;
    const volatile struct setting *setting = &settings->of[settings->in_use & 1];
    return us + setting->offset_us + (us - setting->since_us) * setting->gain_ppm / 1000000;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    long long us = now_us();
    at->tv_sec = us / 1000000;
    at->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *at) {
    time_t seconds = now_us() / 1000000;
    if (at) *at = seconds;
    return seconds;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    if (which != CLOCK_REALTIME) return syscall(SYS_clock_gettime, which, at);
    long long us = now_us();
    at->tv_sec = us / 1000000;
    at->tv_nsec = us % 1000000 * 1000;
    return 0;
}
