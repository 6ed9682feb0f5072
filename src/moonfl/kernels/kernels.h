/* What the parts of the native code share. */
#ifndef MOONFL_KERNELS_H
#define MOONFL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define LANES 16 /* samples in a block; the most floats in a register */
#define TILE 6   /* output channels of a convolution summed at a time */
#define INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* A layer of a chain: 64 bits a field, in the order of kernels/chain.py. Matrices lie row by row. */
struct step {
    int64_t kernel;          /* of a convolution w [O][C][K][K] with ReLU and pooling; 0: a linear layer w [O][I] */
    int64_t inputs, outputs; /* channels, or features */
    int64_t height, width;   /* of a convolution's input [N][H][W][C] */
    int64_t flat; /* a convolution: give [N][O][H][W], not [N][H][W][O] */
    int64_t relu; /* a linear layer: ReLU after it */
    const float *w, *b;
    float *y;
    uint8_t *arg;    /* of a convolution, [ceil(N/16)][elements][16]: where the maxima were; NULL: nobody will ask */
    const float *dy; /* the gradient of y that comes from outside the chain; NULL: none does */
    float *gw, *gb;
};
_Static_assert(sizeof(struct step) == 14 * 8, "kernels/chain.py writes 14 numbers of 64 bits");

/* y from x [N][...]; 0, or -1: no memory. */
int convpool_forward(const struct step *, const float *x, int64_t n);
int dense_forward(const struct step *, const float *x, int64_t n);
/* gw, gb and, where dx is not NULL, the gradient of x from dy, all that there is of y. 0, or -1: no memory. */
int convpool_backward(const struct step *, const float *x, const float *dy, float *dx, int64_t n);
int dense_backward(const struct step *, const float *x, const float *dy, float *dx, int64_t n);

/* The shape of a convolution. Element (o, p) of a sample's output is number o * channel + p * pixel. */
struct convpool {
    int c, h, w, o, k; /* input channels, height, width; output channels; kernel */
    int ph, pw;        /* height and width after pooling */
    long channel, pixel;
    long row;          /* floats in a padded row of the kernel: k * c, rounded up to LANES */
    long framed;       /* the same with a pixel of zeros before it, and room for a vector after it */
};

/* A place that carries a gradient: where its patch starts in the input (or, for the gradient of the input, where its
 * kernel starts among the framed ones), and dy. */
struct active {
    int32_t at;
    float dy;
};

/* c[m][j] = start[j] + sum over k of a[m * a_row + k * a_depth] * b[k * b_row + j], then ReLU; start may be NULL. */
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

/* What an instruction set has. */
struct kernels {
    int lanes;
    void (*forward)(const struct convpool *, const float *x, const float *w, const float *bias, float *y, uint8_t *arg);
    void (*weight_gradient)(const struct convpool *, const float *x, const struct active *, int count, float *gw);
    void (*input_gradient)(const struct convpool *, const float *w, const struct active *, int count, float *dx);
    void (*product)(const struct product *, float *edge);
    float (*multiply_add)(long n);
};

extern const struct kernels *chosen; /* the one in use */
float *scratch(size_t floats);       /* working memory of this thread, kept from call to call; NULL: no memory */
/* Column c of `from`, whose rows are from_row floats apart, becomes row c of `to`. */
void transpose(const float *from, long rows, long columns, long from_row, float *to, long to_row);
static inline long round_up(long n) { return (n + LANES - 1) / LANES * LANES; }

extern const struct kernels kernels_base;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

#endif
