/* Forward and backward pass of the layer max_pool2d(relu(conv2d(x, w, b)), 2). */
#include <string.h>

#include "kernels.h"

#define PAD 32 /* floats that row loads may read past the end of a sample */

/* Derive the sizes of a convolution. */
static struct convpool shape(const struct step *step)
{
    struct convpool s = {.c = (int)step->inputs, .o = (int)step->outputs, .k = (int)step->kernel};
    s.h = (int)step->height, s.w = (int)step->width;
    s.ph = (s.h - s.k + 1) / 2, s.pw = (s.w - s.k + 1) / 2;
    s.row = round_up((long)s.k * s.c);
    s.framed = round_up((s.k + 2L) * s.c + LANES - 1);
    s.channel = step->flat ? (long)s.ph * s.pw : 1;
    s.pixel = step->flat ? 1 : s.o;
    return s;
}

/* Transpose n rows of `count` floats to [16 / width][count][width]; lanes past n are zero. */
static void to_lanes(const float *from, long count, int n, int width, float *to)
{
    if (n < LANES) memset(to, 0, sizeof(float) * count * LANES);
    for (int first = 0; first < n; first += width, to += count * width)
        transpose(from + first * count, n - first < width ? n - first : width, count, count, to, width);
}

/* Convert [O][C][K][K] to [K][C][K][width of the tile] for each tile of output channels. */
static void pack_tiles(const struct convpool *s, const float *w, float *to)
{
    for (int o = 0; o < s->o; o += TILE) {
        const int n = s->o - o < TILE ? s->o - o : TILE;
        for (int kh = 0; kh < s->k; kh++)
            for (int c = 0; c < s->c; c++)
                for (int kw = 0; kw < s->k; kw++)
                    for (int t = 0; t < n; t++) *to++ = w[(((o + t) * (long)s->c + c) * s->k + kh) * s->k + kw];
    }
}

/* Convert [O][C][K][K] to [O][K + 2][framed]: every kernel as pixels of C channels with a border of zeros. */
static void pack_framed(const struct convpool *s, const float *w, float *to)
{
    memset(to, 0, sizeof(float) * s->o * (s->k + 2) * s->framed);
    for (long o = 0; o < s->o; o++)
        for (int c = 0; c < s->c; c++)
            for (int kh = 0; kh < s->k; kh++)
                for (int kw = 0; kw < s->k; kw++)
                    to[(o * (s->k + 2) + kh + 1) * s->framed + (kw + 1) * s->c + c] =
                        w[((o * s->c + c) * s->k + kh) * s->k + kw];
}

/* Convert [O][K][row] to [O][C][K][K]. */
static void unpack_rows(const struct convpool *s, const float *from, float *w)
{
    for (long o = 0; o < s->o; o++)
        for (int c = 0; c < s->c; c++)
            for (int kh = 0; kh < s->k; kh++)
                for (int kw = 0; kw < s->k; kw++)
                    w[((o * s->c + c) * s->k + kh) * s->k + kw] = from[(o * s->k + kh) * s->row + kw * s->c + c];
}

int convpool_forward(const struct step *step, const float *x, int64_t n)
{
    const struct convpool s = shape(step);
    const long inputs = (long)s.c * s.h * s.w, outputs = (long)s.o * s.ph * s.pw;
    const long weights = round_up((long)s.o * s.c * s.k * s.k);
    float *tiles = scratch(weights + (inputs + outputs) * LANES);
    if (!tiles) return -1;
    float *xs = tiles + weights, *ys = xs + inputs * LANES;
    pack_tiles(&s, step->w, tiles);
    for (int64_t i = 0; i < n; i += LANES) {
        const int samples = n - i < LANES ? (int)(n - i) : LANES;
        to_lanes(x + i * inputs, inputs, samples, chosen->lanes, xs);
        chosen->forward(&s, xs, tiles, step->b, ys, step->arg ? step->arg + i * outputs : 0);
        transpose(ys, outputs, samples, LANES, step->y + i * outputs, outputs);
    }
    return 0;
}

/* List the output pixels of channel o in one sample that have a gradient, and add their dy to `sum`. Return the
 * number of pixels. */
static int active_places(const struct convpool *s, int o, const float *y, const float *dy, const uint8_t *arg,
                         struct active *restrict list, float *restrict sum)
{
    const int place[4] = {0, s->c, s->w * s->c, s->w * s->c + s->c}; /* offsets in the 2x2 window */
    int count = 0;
    long e = o * s->channel;
    float total = 0.0f;
    for (int py = 0; py < s->ph; py++)
        for (int px = 0; px < s->pw; px++, e += s->pixel) {
            list[count].at = (2 * py * s->w + 2 * px) * s->c + place[arg[e * LANES]];
            list[count].dy = dy[e];
            total += through_relu(y[e], dy[e]);
            count += !(y[e] <= 0.0f);
        }
    *sum += total;
    return count;
}

/* List the channels of window p in one sample that have a gradient, with the offset from which the framed kernel is
 * read, so that it is aligned with the position of the maximum. The list is padded to a multiple of four with entries
 * of zero gradient. Return its length. */
static int active_channels(const struct convpool *s, long p, const float *y, const float *dy, const uint8_t *arg,
                           struct active *list)
{
    const long start[4] = {s->framed + s->c, s->framed, s->c, 0}; /* by the position in the 2x2 window */
    int count = 0;
    long e = p * s->pixel, frame = 0;
    for (int o = 0; o < s->o; o++, e += s->channel, frame += (s->k + 2) * s->framed) {
        list[count].at = (int32_t)(frame + start[arg[e * LANES]]);
        list[count].dy = dy[e];
        count += !(y[e] <= 0.0f);
    }
    for (; count % 4; count++) list[count] = (struct active){0, 0.0f};
    return count;
}

int convpool_backward(const struct step *step, const float *x, const float *dy, float *dx, int64_t n)
{
    const struct convpool s = shape(step);
    const long inputs = (long)s.c * s.h * s.w, places = (long)s.ph * s.pw, outputs = s.o * places;
    const long rows = s.o * s.k * s.row, framed_floats = s.o * (s.k + 2) * s.framed, sample = round_up(inputs + PAD);
    const long list_length = (places > s.o ? places : s.o) + 4;
    float *g = scratch(rows + framed_floats + 2 * sample + list_length * (sizeof(struct active) / sizeof(float)));
    if (!g) return -1;
    float *framed = g + rows, *last = framed + framed_floats, *dx_one = last + sample;
    struct active *list = (struct active *)(dx_one + sample);
    memset(g, 0, sizeof(float) * rows);
    memset(step->gb, 0, sizeof(float) * s.o);
    if (dx) pack_framed(&s, step->w, framed);
    for (int64_t i = 0; i < n; i++) {
        const float *xi = x + i * inputs, *yi = step->y + i * outputs, *dyi = dy + i * outputs;
        const uint8_t *arg_i = step->arg + i / LANES * LANES * outputs + i % LANES;
        if (i == n - 1) { /* row loads read past the end of a sample; after the last one there is no memory of ours */
            memcpy(last, xi, sizeof(float) * inputs);
            memset(last + inputs, 0, sizeof(float) * PAD);
            xi = last;
        }
        for (int channel = 0; channel < s.o; channel++) {
            const int count = active_places(&s, channel, yi, dyi, arg_i, list, step->gb + channel);
            chosen->weight_gradient(&s, xi, list, count, g + (long)channel * s.k * s.row);
        }
        if (!dx) continue;
        memset(dx_one, 0, sizeof(float) * (inputs + PAD));
        for (long p = 0; p < places; p++) {
            float *corner = dx_one + (2 * (p / s.pw) * s.w + 2 * (p % s.pw)) * s.c;
            const int count = active_channels(&s, p, yi, dyi, arg_i, list);
            chosen->input_gradient(&s, framed, list, count, corner);
        }
        memcpy(dx + i * inputs, dx_one, sizeof(float) * inputs);
    }
    unpack_rows(&s, g, step->gw);
    return 0;
}
