/* Forward and backward pass of a sequence of layers in one call, because the overhead of calls dominates for small
 * batches. */
#include "kernels.h"

/* Compute y of every step. Return 0, or -1 if there is no memory. */
EXPORT int moonfl_chain_forward(const struct step *steps, int64_t count, const float *x, int64_t n)
{
    for (const struct step *s = steps; s < steps + count; x = s++->y)
        if (s->kernel ? convpool_forward(s, x, n) : dense_forward(s, x, n)) return -1;
    return 0;
}

/* Number of output values per sample. */
static long outputs(const struct step *s)
{
    return s->outputs * (s->kernel ? (s->height - s->kernel + 1) / 2 * ((s->width - s->kernel + 1) / 2) : 1);
}

/* Compute gw and gb of every step, and dx unless it is NULL. The last step must have a dy. `room` has space for
 * 2 * `widest` floats, the gradients that are passed between steps; `widest` is the largest size of y of any step but
 * the last. Return 0, or -1 if there is no memory. */
EXPORT int moonfl_chain_backward(const struct step *steps, int64_t count, const float *x, int64_t n, float *dx,
                                 float *room, int64_t widest)
{
    float *from_later = 0;
    for (int64_t i = count - 1; i >= 0; i--) {
        const struct step *s = steps + i;
        const float *before = i ? s[-1].y : x, *dy = from_later ? from_later : s->dy;
        if (from_later && s->dy)
            for (long e = 0; e < n * outputs(s); e++) from_later[e] += s->dy[e];
        float *next = i ? room + i % 2 * widest : dx;
        if (s->kernel ? convpool_backward(s, before, dy, next, n) : dense_backward(s, before, dy, next, n)) return -1;
        from_later = next;
    }
    return 0;
}
