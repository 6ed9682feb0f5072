/* Layers in a row, each fed by the one before: one call for all of them, for in small steps calls are what costs. */
#include "kernels.h"

/* 0, or -1: no memory. */
EXPORT int moonfl_chain_forward(const struct step *steps, int64_t count, const float *x, int64_t n)
{
    for (const struct step *s = steps; s < steps + count; x = s++->y)
        if (s->kernel ? convpool_forward(s, x, n) : dense_forward(s, x, n)) return -1;
    return 0;
}

static long outputs(const struct step *s)
{
    return s->outputs * (s->kernel ? (s->height - s->kernel + 1) / 2 * ((s->width - s->kernel + 1) / 2) : 1);
}

/* gw and gb of every step, and dx unless it is NULL. room: twice `widest`, the most floats that the y of a step but the
 * last has, for the gradients on their way. The last step has a dy. 0, or -1: no memory. */
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
