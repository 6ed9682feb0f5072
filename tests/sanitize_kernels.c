/* Every exported function on odd shapes, with buffers of exactly the size they need: for the address and
 * undefined-behaviour sanitizers (`make sanitize`). Prints a checksum, so that nothing is optimised away. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int moonfl_choose(const char *most);
int moonfl_convpool_forward(const float *, const float *, const float *, float *, uint8_t *, int64_t, int, int, int, int,
                            int, int);
int moonfl_convpool_backward(const float *, const float *, const float *, const uint8_t *, const float *, float *, float *,
                             float *, int64_t, int, int, int, int, int, int);
int moonfl_dense_forward(const float *, const float *, const float *, float *, int64_t, int64_t, int64_t, int);
int moonfl_dense_backward(const float *, const float *, const float *, const float *, float *, float *, float *, int64_t,
                          int64_t, int64_t, int);
void moonfl_batch(const uint8_t *, const int64_t *, const int32_t *, const int64_t *, const float *, float *, int64_t, int,
                  int);

static float *numbers(long n)
{
    float *p = malloc(n * sizeof(float));
    for (long i = 0; i < n; i++) p[i] = (float)(rand() % 7 - 3);
    return p;
}

static double convolution(int n, int c, int h, int w, int o, int k, int nchw)
{
    const int ph = (h - k + 1) / 2, pw = (w - k + 1) / 2;
    const long in = (long)n * c * h * w, out = (long)n * o * ph * pw, weights = (long)o * c * k * k;
    float *x = numbers(in), *weight = numbers(weights), *bias = numbers(o), *y = numbers(out), *dy = numbers(out);
    float *dx = numbers(in), *gw = numbers(weights), *gb = numbers(o);
    uint8_t *arg = malloc((long)(n + 15) / 16 * 16 * o * ph * pw);
    double sum = 0;
    moonfl_convpool_forward(x, weight, bias, y, 0, n, c, h, w, o, k, nchw);
    moonfl_convpool_forward(x, weight, bias, y, arg, n, c, h, w, o, k, nchw);
    moonfl_convpool_backward(x, weight, y, arg, dy, 0, gw, gb, n, c, h, w, o, k, nchw);
    moonfl_convpool_backward(x, weight, y, arg, dy, dx, gw, gb, n, c, h, w, o, k, nchw);
    for (long i = 0; i < in; i++) sum += dx[i];
    for (long i = 0; i < weights; i++) sum += gw[i];
    free(x), free(weight), free(bias), free(y), free(dy), free(dx), free(gw), free(gb), free(arg);
    return sum;
}

static double linear(int n, int inputs, int outputs, int relu)
{
    float *x = numbers(n * inputs), *w = numbers(outputs * inputs), *bias = numbers(outputs), *y = numbers(n * outputs);
    float *dy = numbers(n * outputs), *dx = numbers(n * inputs), *gw = numbers(outputs * inputs), *gb = numbers(outputs);
    double sum = 0;
    moonfl_dense_forward(x, w, bias, y, n, inputs, outputs, relu);
    moonfl_dense_backward(x, w, y, dy, 0, gw, gb, n, inputs, outputs, relu);
    moonfl_dense_backward(x, w, y, dy, dx, gw, gb, n, inputs, outputs, relu);
    for (int i = 0; i < n * inputs; i++) sum += dx[i];
    for (int i = 0; i < outputs * inputs; i++) sum += gw[i];
    free(x), free(w), free(bias), free(y), free(dy), free(dx), free(gw), free(gb);
    return sum;
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
    for (int i = 0; i < 2 * pixels; i++) maps[i] = rand() % (pixels + 1); /* `pixels` is black */
    moonfl_batch(images, rows, maps, choice, table, out, n, channels, pixels);
    for (long i = 0; i < (long)n * channels * pixels; i++) sum += out[i];
    free(images), free(rows), free(choice), free(maps), free(table), free(out);
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
            sum += linear(n, 1, 1, 0) + linear(n, 17, 33, 1) + linear(n, 40, 7, 0) + linear(n, 32, 48, 1);
        sum += batch(5, 3, 64) + batch(1, 1, 7);
        printf("%s: %d lanes, checksum %g\n", sets[s], lanes, sum);
    }
    return 0;
}
