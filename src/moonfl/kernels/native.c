/* Selection of the instruction set, scratch memory, and preparation of image batches. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

const struct kernels *chosen;

/* Select the best available instruction set up to the given one ("avx512", "avx2", "base"). Return its number of
 * lanes. */
EXPORT int moonfl_choose(const char *most)
{
    const struct kernels *best = &kernels_base;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx2 && strcmp(most, "base")) best = &kernels_avx2;
    if (avx512 && !strcmp(most, "avx512")) best = &kernels_avx512;
#else
    (void)most;
#endif
    chosen = best;
    return best->lanes;
}

/* Incremented with every change of the exported functions; kernels/library.py has the same number. */
EXPORT int moonfl_version(void) { return 5; }

/* Return the number of lanes of the selected instruction set. */
EXPORT int moonfl_lanes(void) { return chosen->lanes; }

/* Execute n times ten vector multiply-adds, to measure the peak performance of the CPU. */
EXPORT float moonfl_multiply_add(int64_t n) { return chosen->multiply_add((long)n); }

static pthread_key_t at_the_end; /* frees the memory of a thread when it exits */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int has_key;
static void make_key(void) { has_key = !pthread_key_create(&at_the_end, free); }

float *scratch(size_t floats)
{
    static __thread float *memory;
    static __thread size_t have;
    if (!memory || floats > have) {
        pthread_once(&once, make_key);
        free(memory);
        have = 0;
        if (posix_memalign((void **)&memory, 64, (floats + 1) * sizeof(float))) memory = 0;
        else have = floats;
        if (has_key) pthread_setspecific(at_the_end, memory);
    }
    return memory;
}

/* Gather one image: out[p][c] = table[c][from[c][map[p]]]. */
static INLINE void image(const int channels, const uint8_t *from, const int32_t *map, const float *table, int pixels,
                         float *restrict out)
{
    for (int p = 0; p < pixels; p++)
        for (int c = 0; c < channels; c++)
            *out++ = table[c * 256 + (map[p] < pixels ? from[c * pixels + map[p]] : 0)];
}

/* Gather a batch of images: out[b][p][c] = table[c][images[rows[b]][c][maps[choice[b]][p]]]. A map value of `pixels`
 * means black. */
EXPORT void moonfl_batch(const uint8_t *images, const int64_t *rows, const int32_t *maps, const int64_t *choice,
                         const float *table, float *out, int64_t batch, int channels, int pixels)
{
    const long size = (long)channels * pixels;
    for (int64_t b = 0; b < batch; b++, out += size) {
        const uint8_t *from = images + rows[b] * size;
        const int32_t *map = maps + choice[b] * pixels;
        if (channels == 3) image(3, from, map, table, pixels, out); /* a constant for the compiler */
        else image(channels, from, map, table, pixels, out);
    }
}

/* Round down to an integer. */
static INLINE int floor_int(float v)
{
    const int i = (int)v;
    return i - (v < (float)i);
}

/* Rotate the maps of a batch: out[b] = maps[choice[b]] at the source of every pixel; black outside of the image. Row r
 * and column c have their source in column cos_x[b][c] - sin_y[b][r] + width / 2 and in row sin_x[b][c] + cos_y[b][r] +
 * height / 2, both rounded down. The products are arguments because a compiler could fuse them with the sums, which
 * would round differently from torch. */
EXPORT void moonfl_rotate(const int32_t *maps, const int64_t *choice, const float *cos_x, const float *sin_y,
                          const float *sin_x, const float *cos_y, int32_t *out, int64_t batch, int height, int width)
{
    const int pixels = height * width;
    for (int64_t b = 0; b < batch; b++, cos_x += width, sin_x += width, sin_y += height, cos_y += height) {
        const int32_t *map = maps + choice[b] * pixels;
        for (int r = 0; r < height; r++)
            for (int c = 0; c < width; c++) {
                const int column = floor_int(cos_x[c] - sin_y[r] + 0.5f * (float)width);
                const int row = floor_int(sin_x[c] + cos_y[r] + 0.5f * (float)height);
                const int inside = row >= 0 && row < height && column >= 0 && column < width;
                *out++ = inside ? map[row * width + column] : pixels;
            }
    }
}
