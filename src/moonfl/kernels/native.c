/* What Python calls: choice of the instruction set, the layer as a whole, and batches of images. */
#include <stdlib.h>
#include <string.h>

#include "convpool_types.h"

#define EXPORT __attribute__((visibility("default")))
#define PAD 32 /* floats that row loads may run past the end of a sample */

static const struct kernels *chosen;

/* Use at most the instruction set of this name ("avx512", "avx2", "base"); the number of lanes it has. */
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

/* The lanes of the instruction set in use. */
EXPORT int moonfl_lanes(void) { return chosen->lanes; }

/* For measuring the processor: does n times ten vector multiply-adds. */
EXPORT float moonfl_multiply_add(int64_t n) { return chosen->multiply_add((long)n); }

/* Working memory of this thread, kept from call to call. */
static float *scratch(size_t floats)
{
    static __thread float *memory;
    static __thread size_t have;
    if (floats > have) {
        free(memory);
        have = 0;
        if (posix_memalign((void **)&memory, 64, floats * sizeof(float))) return memory = 0;
        have = floats;
    }
    return memory;
}

static long round_up(long n) { return (n + LANES - 1) / LANES * LANES; }

static struct convpool layer(int c, int h, int w, int o, int k, int nchw)
{
    struct convpool s = {c, h, w, o, k, (h - k + 1) / 2, (w - k + 1) / 2, 0, 0, round_up((long)k * c)};
    s.channel = nchw ? (long)s.ph * s.pw : 1;
    s.pixel = nchw ? 1 : o;
    return s;
}

/* n rows of `count` floats -> [count][16], lanes past n zero; in blocks that stay in the cache */
static void to_lanes(const float *from, long count, int n, float *to)
{
    for (long e = 0; e < count; e += LANES) {
        const long end = e + LANES < count ? e + LANES : count;
        for (int lane = 0; lane < LANES; lane++)
            for (long i = e; i < end; i++) to[i * LANES + lane] = lane < n ? from[lane * count + i] : 0.0f;
    }
}

static void from_lanes(const float *from, long count, int n, float *to)
{
    for (long e = 0; e < count; e += LANES) {
        const long end = e + LANES < count ? e + LANES : count;
        for (int lane = 0; lane < n; lane++)
            for (long i = e; i < end; i++) to[lane * count + i] = from[i * LANES + lane];
    }
}

/* [O][C][K][K] -> for each tile of channels [K][C][K][tile] */
static void pacsettiles(const struct convpool *s, int tile, const float *w, float *to)
{
    for (int o = 0; o < s->o; o += tile) {
        const int n = s->o - o < tile ? s->o - o : tile;
        for (int kh = 0; kh < s->k; kh++)
            for (int c = 0; c < s->c; c++)
                for (int kw = 0; kw < s->k; kw++)
                    for (int t = 0; t < n; t++) *to++ = w[(((o + t) * (long)s->c + c) * s->k + kh) * s->k + kw];
    }
}

/* [O][C][K][K] <-> [O][K][row], a row being K pixels of C channels and zeros */
static void pacsetrows(const struct convpool *s, const float *w, float *to)
{
    memset(to, 0, sizeof(float) * s->o * s->k * s->row);
    for (long o = 0; o < s->o; o++)
        for (int c = 0; c < s->c; c++)
            for (int kh = 0; kh < s->k; kh++)
                for (int kw = 0; kw < s->k; kw++)
                    to[(o * s->k + kh) * s->row + kw * s->c + c] = w[((o * s->c + c) * s->k + kh) * s->k + kw];
}

static void unpacsetrows(const struct convpool *s, const float *from, float *w)
{
    for (long o = 0; o < s->o; o++)
        for (int c = 0; c < s->c; c++)
            for (int kh = 0; kh < s->k; kh++)
                for (int kw = 0; kw < s->k; kw++)
                    w[((o * s->c + c) * s->k + kh) * s->k + kw] = from[(o * s->k + kh) * s->row + kw * s->c + c];
}

/* x [N][H][W][C]; w [O][C][K][K]; y [N][elements]; arg [ceil(N/16)][elements][16] or NULL. 0, or -1: no memory. */
EXPORT int moonfl_convpool_forward(const float *x, const float *w, const float *bias, float *y, uint8_t *arg, int64_t n,
                                   int c, int h, int width, int o, int k, int nchw)
{
    const struct convpool s = layer(c, h, width, o, k, nchw);
    const long inputs = (long)c * h * width, outputs = (long)o * s.ph * s.pw, weights = round_up((long)o * c * k * k);
    float *tiles = scratch(weights + (inputs + outputs) * LANES);
    if (!tiles) return -1;
    float *xs = tiles + weights, *ys = xs + inputs * LANES;
    const struct kernels *set = chosen;
    pacsettiles(&s, set->tile, w, tiles);
    for (int64_t i = 0; i < n; i += LANES) {
        const int samples = n - i < LANES ? (int)(n - i) : LANES;
        to_lanes(x + i * inputs, inputs, samples, xs);
        set->forward(&s, xs, tiles, bias, ys, arg ? arg + i * outputs : 0);
        from_lanes(ys, outputs, samples, y + i * outputs);
    }
    return 0;
}

/* The places of channel o in one sample that carry a gradient, and the sum of their dy. */
static int active_places(const struct convpool *s, int o, const float *y, const float *dy, const uint8_t *arg,
                         struct active *restrict list, float *restrict sum)
{
    const int place[4] = {0, s->c, s->w * s->c, s->w * s->c + s->c}; /* of the 2x2 window */
    int count = 0;
    long e = o * s->channel;
    float total = 0.0f;
    for (int py = 0; py < s->ph; py++)
        for (int px = 0; px < s->pw; px++, e += s->pixel) {
            const int on = !(y[e] <= 0.0f); /* ReLU; without a branch, which would be a coin toss */
            list[count].at = (2 * py * s->w + 2 * px) * s->c + place[arg[e * LANES]];
            list[count].dy = dy[e];
            total += on ? dy[e] : 0.0f;
            count += on;
        }
    *sum += total;
    return count;
}

/* Gradients of the weights and the bias, and of the input where dx is not NULL. 0, or -1: no memory. */
EXPORT int moonfl_convpool_backward(const float *x, const float *w, const float *y, const uint8_t *arg, const float *dy,
                                    float *dx, float *gw, float *gb, int64_t n, int c, int h, int width, int o, int k,
                                    int nchw)
{
    const struct convpool s = layer(c, h, width, o, k, nchw);
    const long inputs = (long)c * h * width, places = (long)s.ph * s.pw, outputs = o * places, rows = o * k * s.row;
    const long list_floats = round_up((places + 1) * (long)(sizeof(struct active) / sizeof(float)));
    float *g = scratch(2 * rows + 2 * round_up(inputs + PAD) + list_floats);
    if (!g) return -1;
    float *kernel_rows = g + rows, *last = kernel_rows + rows, *dx_one = last + round_up(inputs + PAD);
    struct active *list = (struct active *)(dx_one + round_up(inputs + PAD));
    memset(g, 0, sizeof(float) * rows);
    memset(gb, 0, sizeof(float) * o);
    if (dx) pacsetrows(&s, w, kernel_rows);
    for (int64_t i = 0; i < n; i++) {
        const float *xi = x + i * inputs;
        if (i == n - 1) { /* row loads run past a sample's end; past the last there is nothing of ours */
            memcpy(last, xi, sizeof(float) * inputs);
            memset(last + inputs, 0, sizeof(float) * PAD);
            xi = last;
        }
        if (dx) memset(dx_one, 0, sizeof(float) * (inputs + PAD));
        for (int channel = 0; channel < o; channel++) {
            const uint8_t *places_arg = arg + i / LANES * LANES * outputs + i % LANES;
            const int count = active_places(&s, channel, y + i * outputs, dy + i * outputs, places_arg, list, gb + channel);
            chosen->weight_gradient(&s, xi, list, count, g + (long)channel * k * s.row);
            if (dx) chosen->input_gradient(&s, kernel_rows + (long)channel * k * s.row, list, count, dx_one);
        }
        if (dx) memcpy(dx + i * inputs, dx_one, sizeof(float) * inputs);
    }
    unpacsetrows(&s, g, gw);
    return 0;
}

/* Batch of images: out[b][p][c] = table[c][images[rows[b]][c][maps[choice[b]][p]]]; a map's `pixels` means black. */
EXPORT void moonfl_batch(const uint8_t *images, const int64_t *rows, const int32_t *maps, const int64_t *choice,
                         const float *table, float *out, int64_t batch, int channels, int pixels)
{
    for (int64_t b = 0; b < batch; b++) {
        const uint8_t *image = images + rows[b] * channels * pixels;
        const int32_t *map = maps + choice[b] * pixels;
        for (int p = 0; p < pixels; p++)
            for (int c = 0; c < channels; c++)
                *out++ = table[c * 256 + (map[p] < pixels ? image[c * pixels + map[p]] : 0)];
    }
}
