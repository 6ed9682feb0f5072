/* Forward and backward pass of the linear layer y = x w' + b, optionally with ReLU. */
#include <string.h>

#include "kernels.h"

int dense_forward(const struct step *step, const float *x, int64_t n)
{
    const long inputs = step->inputs, outputs = step->outputs;
    const float *w = step->w;
    const long width = (round_up(outputs) / LANES | 1) * LANES; /* an odd number of cache lines, against conflicts */
    float *turned = scratch(inputs * width + width); /* w' [I][O] and b, zero-padded to whole vectors */
    if (!turned) return -1;
    float *start = turned + inputs * width;
    memset(turned, 0, sizeof(float) * (inputs + 1) * width);
    transpose(w, outputs, inputs, inputs, turned, width);
    memcpy(start, step->b, sizeof(float) * outputs);
    const int relu = step->relu != 0;
    const struct product p = {n, outputs, inputs, x, inputs, 1, turned, width, start, step->y, outputs, relu};
    chosen->product(&p, 0);
    return 0;
}

/* Propagate the gradient of one sample through the ReLU, if there is one, and add it to the gradient of the bias. */
static void sample_gradient(long outputs, int relu, const float *y, const float *dy, float *restrict g,
                            float *restrict gb)
{
    if (relu)
        for (long o = 0; o < outputs; o++) g[o] = through_relu(y[o], dy[o]);
    else memcpy(g, dy, sizeof(float) * outputs);
    for (long o = 0; o < outputs; o++) gb[o] += g[o];
}

int dense_backward(const struct step *step, const float *x, const float *dy, float *dx, int64_t n)
{
    const long inputs = step->inputs, outputs = step->outputs, edge_floats = (n > outputs ? n : outputs) * LANES;
    float *edge = scratch(edge_floats + n * outputs);
    if (!edge) return -1;
    float *g = edge + edge_floats;
    memset(step->gb, 0, sizeof(float) * outputs);
    for (long i = 0; i < n; i++)
        sample_gradient(outputs, step->relu != 0, step->y + i * outputs, dy + i * outputs, g + i * outputs, step->gb);
    const struct product weights = {outputs, inputs, n, g, 1, outputs, x, inputs, 0, step->gw, inputs, 0};
    chosen->product(&weights, edge);
    const struct product input = {n, inputs, outputs, g, outputs, 1, step->w, inputs, 0, dx, inputs, 0};
    if (dx) chosen->product(&input, edge);
    return 0;
}
