/* What the parts of the convolution share. */
#ifndef CONVPOOL_TYPES_H
#define CONVPOOL_TYPES_H

#include <stdint.h>

#define LANES 16 /* samples in a block */
#define INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The shape of a layer. Element (o, p) of a sample's output is number o * channel + p * pixel. */
struct convpool {
    int c, h, w, o, k; /* input channels, height, width; output channels; kernel */
    int ph, pw;        /* height and width after pooling */
    long channel, pixel;
    long row;          /* floats in a padded row of the kernel: k * c, rounded up to LANES */
};

/* A place that carries a gradient: where its patch starts in the input, and dy. */
struct active {
    int32_t at;
    float dy;
};

struct kernels {
    int lanes, tile;
    void (*forward)(const struct convpool *, const float *x, const float *w, const float *bias, float *y, uint8_t *arg);
    void (*weight_gradient)(const struct convpool *, const float *x, const struct active *, int count, float *gw);
    void (*input_gradient)(const struct convpool *, const float *w, const struct active *, int count, float *dx);
    float (*multiply_add)(long n);
};

extern const struct kernels kernels_base;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

#endif
