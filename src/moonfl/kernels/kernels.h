/* Declarations shared by the files of the native code. */
#ifndef MOONFL_KERNELS_H
#define MOONFL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define LANES 16 /* samples in a block; the largest number of floats in a register */
#define TILE 6   /* output channels of a convolution that are summed at a time */
#define INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* A layer of a chain: 64-bit fields, first those of Step in kernels/plan.py, then addresses. Matrices are row-major. */
struct step {
    int64_t kernel;          /* side of a convolution w [O][C][K][K] with ReLU and pooling; 0: linear layer w [O][I] */
    int64_t inputs, outputs; /* channels or features */
    int64_t height, width;   /* of a convolution's input [N][H][W][C] */
    int64_t flat; /* convolution: output [N][O][H][W] instead of [N][H][W][O] */
    int64_t relu; /* linear layer: followed by ReLU */
    const float *w, *b;
    float *y;
    uint8_t *arg;    /* convolution: argmax [ceil(N/16)][elements][16]; NULL: there will be no backward pass */
    const float *dy; /* gradient of y from outside the chain; NULL: none */
    float *gw, *gb;
};
_Static_assert(sizeof(struct step) == 14 * 8, "kernels/chain.py writes 14 integers of 64 bits");

/* Compute y from x [N][...]. Return 0, or -1 if there is no memory. */
int convpool_forward(const struct step *, const float *x, int64_t n);
int dense_forward(const struct step *, const float *x, int64_t n);
/* Compute gw, gb and, if dx is not NULL, the gradient of x from dy, the complete gradient of y. Return 0, or -1 if
 * there is no memory. */
int convpool_backward(const struct step *, const float *x, const float *dy, float *dx, int64_t n);
int dense_backward(const struct step *, const float *x, const float *dy, float *dx, int64_t n);

/* The sizes of a convolution. Element (o, p) of a sample's output has the index o * channel + p * pixel. */
struct convpool {
    int c, h, w, o, k; /* input channels, height, width; output channels; kernel side */
    int ph, pw;        /* height and width after pooling */
    long channel, pixel;
    long row;          /* floats in a padded row of the kernel: k * c, rounded up to LANES */
    long framed;       /* the same with a pixel of zeros before it and space for a vector after it */
};

/* An output with a gradient dy. `at` is the offset of its patch in the input or, for the gradient of the input, of its
 * kernel among the framed kernels. */
struct active {
    int32_t at;
    float dy;
};

/* A matrix product: c[m][j] = start[j] + sum over k of a[m * a_row + k * a_depth] * b[k * b_row + j], optionally with
 * ReLU; start may be NULL. */
struct product {
    long rows, columns, depth;
    const float *a;
    long a_row, a_depth;
    const float *b;
    long b_row;
    const float *start;
    float *c;
    long c_row;
    int relu;
};

/* The functions compiled for one instruction set. */
struct kernels {
    int lanes;
    void (*forward)(const struct convpool *, const float *x, const float *w, const float *bias, float *y, uint8_t *arg);
    void (*weight_gradient)(const struct convpool *, const float *x, const struct active *, int count, float *gw);
    void (*input_gradient)(const struct convpool *, const float *w, const struct active *, int count, float *dx);
    void (*product)(const struct product *, float *edge);
    float (*multiply_add)(long n);
};

extern const struct kernels *chosen; /* the selected instruction set */
float *scratch(size_t floats);       /* working memory of this thread, reused by later calls; NULL: no memory */
/* Transpose: column c of `from`, whose rows are from_row floats apart, becomes row c of `to`. */
void transpose(const float *from, long rows, long columns, long from_row, float *to, long to_row);
/* Round up to a multiple of LANES. */
static inline long round_up(long n) { return (n + LANES - 1) / LANES * LANES; }
/* Return the gradient dy of a ReLU's input, given its output y. The bits of dy are masked, because compilers turn a
 * conditional into a branch, which cannot be predicted: about half of the outputs are zero. */
static INLINE float through_relu(float y, float dy)
{
    union {
        float number;
        uint32_t bits;
    } both = {dy};
    both.bits &= -(uint32_t)!(y <= 0.0f);
    return both.number;
}

extern const struct kernels kernels_base;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

#endif
