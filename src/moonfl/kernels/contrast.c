/* Cosines between the rows of matrices, and their gradient, for MOON's contrastive loss.
 *
 * Every sum is added in the order of torch, in eight partial sums, so that a run has the same bits with either. This
 * file is compiled without fused multiply-adds, because torch rounds the products: for AVX2 alone, and for any CPU.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

#define PARTS 8
#define CHAINS 4             /* vectors of partial sums that torch adds up at a time */
#define SMALLEST_NORM 1e-8f /* shorter vectors are divided by this */

typedef float eight __attribute__((vector_size(4 * PARTS), aligned(4), may_alias));
#define AT(p) (*(const eight *)(p))

/* Return the Euclidean norm of x [d]. */
static INLINE float norm(const float *x, long d)
{
    eight parts = {0};
    long j = 0;
    for (; j + PARTS <= d; j += PARTS) parts += AT(x + j) * AT(x + j);
    float sum = parts[0];
    for (int i = 1; i < PARTS; i++) sum += parts[i];
    for (; j < d; j++) sum += x[j] * x[j];
    return sqrtf(sum);
}

/* Return the scalar product of x and y [d], for d below CHAINS * PARTS * 16: torch splits longer sums once more. */
static INLINE float dot(const float *x, const float *y, long d)
{
    eight parts[CHAINS] = {{0}};
    long j = 0;
    for (; j + CHAINS * PARTS <= d; j += CHAINS * PARTS)
        UNROLL for (int i = 0; i < CHAINS; i++) parts[i] += AT(x + j + i * PARTS) * AT(y + j + i * PARTS);
    for (; j + PARTS <= d; j += PARTS) parts[0] += AT(x + j) * AT(y + j);
    for (int i = 1; i < CHAINS; i++) parts[0] += parts[i];
    float sum = 0.0f;
    for (; j < d; j++) sum += x[j] * y[j];
    for (int i = 0; i < PARTS; i++) sum += parts[0][i];
    return sum;
}

/* Divide x [d] by its norm. Return the norm. */
static INLINE float normalise(const float *x, long d, float *restrict unit)
{
    const float length = norm(x, d), divisor = length < SMALLEST_NORM ? SMALLEST_NORM : length;
    for (long j = 0; j < d; j++) unit[j] = x[j] / divisor;
    return length;
}

/* Compute cosines[i][m] between row i of z [n][d] and row i of others[m] [n][d], for m below `count`. Also store what
 * the gradient needs: units [n][1 + count][d], the normalised rows of z and of the others, and the norms of z [n]. */
static INLINE void cosines_of(const float *z, const float *const *others, int64_t count, int64_t n, int64_t d,
                              float *cosines, float *units, float *norms)
{
    for (int64_t i = 0; i < n; i++) {
        const float *unit = units;
        norms[i] = normalise(z + i * d, d, units);
        for (int64_t m = 0; m < count; m++) {
            units += d;
            normalise(others[m] + i * d, d, units);
            *cosines++ = dot(unit, units, d);
        }
        units += d;
    }
}

/* Compute dz, the gradient of z, from `gradients`, those of the cosines. `rows` has space for 3 * d floats. */
static INLINE void gradient_of(const float *z, const float *units, const float *norms, const float *gradients,
                               int64_t count, int64_t n, int64_t d, float *restrict dz, float *restrict rows)
{
    float *shrunk = rows, *direction = rows + d, *scaled = rows + 2 * d;
    for (int64_t i = 0; i < n; i++, z += d, dz += d) {
        const float length = norms[i], divisor = length < SMALLEST_NORM ? SMALLEST_NORM : length;
        for (long j = 0; j < d; j++) shrunk[j] = units[j] / divisor, dz[j] = 0.0f;
        if (length < SMALLEST_NORM) /* the vector was not divided by its norm */
            for (long j = 0; j < d; j++) direction[j] = length == 0.0f ? 0.0f : z[j] / length;
        else memcpy(direction, units, sizeof(float) * d);
        for (int64_t m = 0; m < count; m++) {
            units += d;
            for (long j = 0; j < d; j++) scaled[j] = units[j] * *gradients;
            gradients++;
            const float along = -dot(scaled, shrunk, d); /* the gradient of the norm */
            for (long j = 0; j < d; j++) dz[j] += scaled[j] / divisor + direction[j] * along;
        }
        units += d;
    }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
AVX2 static void cosines_avx2(const float *z, const float *const *others, int64_t count, int64_t n, int64_t d,
                              float *cosines, float *units, float *norms)
{
    cosines_of(z, others, count, n, d, cosines, units, norms);
}

AVX2 static void gradient_avx2(const float *z, const float *units, const float *norms, const float *gradients,
                               int64_t count, int64_t n, int64_t d, float *dz, float *rows)
{
    gradient_of(z, units, norms, gradients, count, n, d, dz, rows);
}
#else
#define cosines_avx2 cosines_of
#define gradient_avx2 gradient_of
#endif

EXPORT void moonfl_cosines(const float *z, const float *const *others, int64_t count, int64_t n, int64_t d,
                           float *cosines, float *units, float *norms)
{
    if (chosen->lanes >= PARTS) cosines_avx2(z, others, count, n, d, cosines, units, norms);
    else cosines_of(z, others, count, n, d, cosines, units, norms);
}

/* Compute `gradient_of`. Return 0, or -1 if there is no memory. */
EXPORT int moonfl_cosines_backward(const float *z, const float *units, const float *norms, const float *gradients,
                                   int64_t count, int64_t n, int64_t d, float *dz)
{
    float *rows = scratch(3 * d);
    if (!rows) return -1;
    if (chosen->lanes >= PARTS) gradient_avx2(z, units, norms, gradients, count, n, d, dz, rows);
    else gradient_of(z, units, norms, gradients, count, n, d, dz, rows);
    return 0;
}
