/* Call every exported function on unusual shapes with buffers of exactly the required size, for the address and
 * undefined-behaviour sanitizers (`make sanitize`). Print a checksum, so that nothing is optimised away. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

int moonfl_choose(const char *most);
int moonfl_chain_forward(const struct step *, int64_t, const float *, int64_t);
int moonfl_chain_backward(const struct step *, int64_t, const float *, int64_t, float *, float *, int64_t);
void moonfl_batch(const uint8_t *, const int64_t *, const int32_t *, const int64_t *, const float *, float *, int64_t,
                  int, int);
void moonfl_rotate(const int32_t *, const int64_t *, const float *, const float *, const float *, const float *,
                   int32_t *, int64_t, int, int);
void moonfl_cosines(const float *, const float *const *, int64_t, int64_t, int64_t, float *, float *, float *);
int moonfl_cosines_backward(const float *, const float *, const float *, const float *, int64_t, int64_t, int64_t,
                            float *);

static float *numbers(long n)
{
    float *p = malloc(n * sizeof(float));
    for (long i = 0; i < n; i++) p[i] = (float)(rand() % 7 - 3);
    return p;
}

/* Run forward without and with argmax, and backward without and with the gradient of the input. */
static double chain(struct step *steps, int count, int n)
{
    long inputs = 0, widest = 0;
    for (int i = 0; i < count; i++) {
        struct step *s = steps + i;
        const long places = s->kernel ? (s->height - s->kernel + 1) / 2 * ((s->width - s->kernel + 1) / 2) : 1;
        const long area = s->kernel ? s->kernel * s->kernel : 1;
        const long out = n * s->outputs * places, weights = s->outputs * s->inputs * area;
        if (i == 0) inputs = n * s->inputs * (s->kernel ? s->height * s->width : 1);
        if (i < count - 1 && out > widest) widest = out;
        s->w = numbers(weights), s->b = numbers(s->outputs), s->y = numbers(out), s->arg = 0;
        s->dy = i % 2 && i < count - 1 ? 0 : numbers(out), s->gw = numbers(weights), s->gb = numbers(s->outputs);
    }
    float *x = numbers(inputs), *dx = numbers(inputs), *room = numbers(2 * widest);
    double sum = 0;
    moonfl_chain_forward(steps, count, x, n);
    for (int i = 0; i < count; i++)
        if (steps[i].kernel) {
            const struct step *s = steps + i;
            const long places = (s->height - s->kernel + 1) / 2 * ((s->width - s->kernel + 1) / 2);
            steps[i].arg = malloc((n + 15) / 16 * 16 * s->outputs * places);
        }
    moonfl_chain_forward(steps, count, x, n);
    moonfl_chain_backward(steps, count, x, n, 0, room, widest);
    moonfl_chain_backward(steps, count, x, n, dx, room, widest);
    for (long i = 0; i < inputs; i++) sum += dx[i];
    for (struct step *s = steps; s < steps + count; s++) {
        sum += s->gw[0] + s->gb[0];
        free((float *)s->w), free((float *)s->b), free(s->y), free(s->arg), free((float *)s->dy);
        free(s->gw), free(s->gb);
    }
    free(x), free(dx), free(room);
    return sum;
}

static double convolution(int n, int c, int h, int w, int o, int k, int nchw)
{
    struct step step = {.kernel = k, .inputs = c, .outputs = o, .height = h, .width = w, .flat = nchw};
    return chain(&step, 1, n);
}

static double linear(int n, int inputs, int outputs, int relu)
{
    struct step step = {.inputs = inputs, .outputs = outputs, .relu = relu};
    return chain(&step, 1, n);
}

static double network(int n)
{
    struct step steps[] = {{.kernel = 5, .inputs = 3, .outputs = 6, .height = 20, .width = 18},
                           {.kernel = 3, .inputs = 6, .outputs = 5, .height = 8, .width = 7, .flat = 1},
                           {.inputs = 30, .outputs = 17, .relu = 1},
                           {.inputs = 17, .outputs = 4}};
    return chain(steps, 4, n);
}

static double batch(int n, int channels, int pixels)
{
    uint8_t *images = malloc((long)3 * channels * pixels);
    int64_t *rows = malloc(n * sizeof *rows), *choice = malloc(n * sizeof *choice);
    int32_t *maps = malloc(2L * pixels * sizeof *maps);
    float *table = numbers(channels * 256), *out = numbers((long)n * channels * pixels);
    double sum = 0;
    for (long i = 0; i < 3L * channels * pixels; i++) images[i] = (uint8_t)rand();
    for (int i = 0; i < n; i++) rows[i] = i % 3, choice[i] = i % 2;
    for (int i = 0; i < 2 * pixels; i++) maps[i] = rand() % (pixels + 1); /* `pixels` means black */
    moonfl_batch(images, rows, maps, choice, table, out, n, channels, pixels);
    for (long i = 0; i < (long)n * channels * pixels; i++) sum += out[i];
    free(images), free(rows), free(choice), free(maps), free(table), free(out);
    return sum;
}

static double rotated(int n, int height, int width)
{
    const int pixels = height * width;
    int32_t *maps = malloc(2L * pixels * sizeof *maps), *out = malloc((long)n * pixels * sizeof *out);
    int64_t *choice = malloc(n * sizeof *choice);
    float *products[4];
    double sum = 0;
    for (int i = 0; i < 4; i++) products[i] = numbers((long)n * (i % 2 ? height : width)); /* -3 ... 3 */
    for (int i = 0; i < n; i++) choice[i] = i % 2;
    for (int i = 0; i < 2 * pixels; i++) maps[i] = i % pixels;
    moonfl_rotate(maps, choice, products[0], products[1], products[2], products[3], out, n, height, width);
    for (long i = 0; i < (long)n * pixels; i++) sum += out[i];
    for (int i = 0; i < 4; i++) free(products[i]);
    free(maps), free(out), free(choice);
    return sum;
}

static double cosines(int count, int n, int d)
{
    float *z = numbers((long)n * d), *dz = numbers((long)n * d), *units = numbers((1L + count) * n * d);
    float *cosine = numbers((long)n * count), *norms = numbers(n), **others = malloc(count * sizeof *others);
    double sum = 0;
    for (int m = 0; m < count; m++) others[m] = numbers((long)n * d);
    moonfl_cosines(z, (const float *const *)others, count, n, d, cosine, units, norms);
    moonfl_cosines_backward(z, units, norms, cosine, count, n, d, dz);
    for (long i = 0; i < (long)n * d; i++) sum += dz[i];
    for (int m = 0; m < count; m++) free(others[m]);
    free(z), free(dz), free(units), free(cosine), free(norms), free(others);
    return sum;
}

int main(void)
{
    static const int shapes[][6] = {{64, 3, 32, 32, 6, 5}, {33, 6, 14, 14, 16, 5}, {1, 3, 32, 32, 6, 5},
                                    {17, 2, 11, 9, 7, 3},  {5, 1, 9, 12, 1, 4},    {3, 16, 8, 8, 4, 2},
                                    {2, 7, 7, 7, 9, 1},    {16, 5, 6, 6, 13, 5}};
    static const char *sets[] = {"base", "avx2", "avx512"};
    double sum = 0;
    for (int s = 0; s < 3; s++) {
        const int lanes = moonfl_choose(sets[s]);
        if (lanes != 4 << s) {
            printf("%s: not run, this processor does not have it\n", sets[s]);
            continue;
        }
        for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int nchw = 0; nchw < 2; nchw++) {
                const int *p = shapes[i];
                sum += convolution(p[0], p[1], p[2], p[3], p[4], p[5], nchw);
            }
        for (int n = 1; n < 28; n += 5)
            sum += linear(n, 1, 1, 0) + linear(n, 17, 33, 1) + linear(n, 40, 7, 0) + linear(n, 32, 48, 1) + network(n);
        sum += batch(5, 3, 64) + batch(1, 1, 7) + rotated(3, 4, 5) + rotated(1, 1, 1) + cosines(2, 5, 84) + cosines(1, 1, 8) + cosines(4, 3, 508);
        printf("%s: %d lanes, checksum %g\n", sets[s], lanes, sum);
    }
    return 0;
}
