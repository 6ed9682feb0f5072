/* Transposition of a matrix. */
#include "kernels.h"

#define STRIP 16 /* rows at a time: one cache line of every column */

typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
#define PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t places __attribute__((vector_size(16)));
#define PICK(a, b, i, j, k, l) __builtin_shuffle(a, b, (places){i, j, k, l})
#endif

/* Transpose a 4x4 block. */
static INLINE void turn(const float *from, long from_row, float *to, long to_row)
{
    quad in[4], half[4];
    UNROLL for (int i = 0; i < 4; i++) in[i] = *(const quad *)(from + i * from_row);
    UNROLL for (int i = 0; i < 2; i++) {
        half[2 * i] = PICK(in[2 * i], in[2 * i + 1], 0, 4, 1, 5);
        half[2 * i + 1] = PICK(in[2 * i], in[2 * i + 1], 2, 6, 3, 7);
    }
    UNROLL for (int i = 0; i < 2; i++) {
        *(quad *)(to + 2 * i * to_row) = PICK(half[i], half[i + 2], 0, 1, 4, 5);
        *(quad *)(to + (2 * i + 1) * to_row) = PICK(half[i], half[i + 2], 2, 3, 6, 7);
    }
}

void transpose(const float *from, long rows, long columns, long from_row, float *to, long to_row)
{
    for (long r = 0; r < rows; r += STRIP, from += STRIP * from_row, to += STRIP) {
        const long high = rows - r < STRIP ? rows - r : STRIP, whole = high / 4 * 4;
        long c = 0;
        for (; c + 4 <= columns; c += 4) {
            for (long i = 0; i < whole; i += 4) turn(from + i * from_row + c, from_row, to + c * to_row + i, to_row);
            for (long i = whole; i < high; i++)
                for (long j = c; j < c + 4; j++) to[j * to_row + i] = from[i * from_row + j];
        }
        for (; c < columns; c++)
            for (long i = 0; i < high; i++) to[c * to_row + i] = from[i * from_row + c];
    }
}
