/* The functions of one instruction set. Each set_*.c file includes this one and defines
 *   VL     floats in a vector register
 *   PLACES positions of the 2x2 window whose sums, for TILE channels, are in registers at a time: 2 or 4
 *   ROWS   rows of a matrix product whose sums are in registers at a time
 *   NAME() the name of a function with the suffix of the instruction set
 */
#include "kernels.h"

typedef float NAME(vec) __attribute__((vector_size(4 * VL)));
typedef float NAME(loose) __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t NAME(mask) __attribute__((vector_size(4 * VL)));
typedef uint8_t NAME(bytes) __attribute__((vector_size(VL), aligned(1), may_alias));
#define V NAME(vec)
#define M NAME(mask)
#define LOAD(p) ((V) * (const NAME(loose) *)(p))
#define STORE(p, v) (*(NAME(loose) *)(p) = (v))

#include "convpool.h"
#include "product.h"

/* Execute n times ten independent multiply-adds, enough to saturate the CPU. */
static float NAME(multiply_add)(long n)
{
    V sum[10], step = 0.999f - (V){0};
    UNROLL for (int i = 0; i < 10; i++) sum[i] = (float)i - (V){0};
    for (; n > 0; n--)
        UNROLL for (int i = 0; i < 10; i++) sum[i] = sum[i] * step + step;
    UNROLL for (int i = 1; i < 10; i++) sum[0] += sum[i];
    return sum[0][0];
}

const struct kernels NAME(kernels) = {
    VL, NAME(forward), NAME(weight_gradient), NAME(input_gradient), NAME(product), NAME(multiply_add),
};
