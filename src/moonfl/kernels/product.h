/* Matrix product: c[m][j] = start[j] + sum over k of a(m, k) b[k][j].
 *
 * A lane is a column. A tile of ROWS rows and two vectors of columns is summed in registers over the whole depth, in
 * the order of k, so that an element does not depend on the sizes of the matrices or on its neighbours.
 */

/* Compute a tile of R rows and N vectors, of which `width` columns are stored. */
static INLINE void NAME(product_tile)(const int R, const int N, const struct product *p, const float *a, const float *b,
                                      const long b_row, const float *start, float *c, const int width)
{
    V sum[ROWS][2];
    const long depth = p->depth, a_row = p->a_row, a_depth = p->a_depth;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N; j++) sum[r][j] = start ? LOAD(start + j * VL) : (V){0};
    for (long k = 0; k < depth; k++, a += a_depth, b += b_row) {
        V columns[2];
        UNROLL for (int j = 0; j < N; j++) columns[j] = LOAD(b + j * VL);
        UNROLL for (int r = 0; r < R; r++) {
            const V factor = a[r * a_row] - (V){0};
            UNROLL for (int j = 0; j < N; j++) sum[r][j] += columns[j] * factor;
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N; j++) {
            const V value = p->relu ? (V)((M)sum[r][j] & ~(sum[r][j] <= 0.0f)) : sum[r][j];
            float *to = c + r * p->c_row + j * VL;
            if (width >= (j + 1) * VL) STORE(to, value);
            else
                for (int lane = 0; j * VL + lane < width; lane++) to[lane] = value[lane];
        }
}

/* Compute all rows of N vectors of columns. */
static INLINE void NAME(product_columns)(const int N, const struct product *p, const float *b, const long b_row,
                                         const float *start, float *c, const int width)
{
    for (long m = 0; m < p->rows; m += ROWS) {
        const float *a = p->a + m * p->a_row;
        float *to = c + m * p->c_row;
        switch (p->rows - m < ROWS ? p->rows - m : ROWS) {
#define CASE(r) case r: NAME(product_tile)(r, N, p, a, b, b_row, start, to, width); break
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
            CASE(5);
            CASE(6);
#if ROWS > 6
            CASE(7);
            CASE(8);
            CASE(9);
            CASE(10);
            CASE(11);
            CASE(12);
#endif
#undef CASE
        }
    }
}

/* Compute the product. `edge` has space for depth * VL floats, the last columns if they do not fill a vector; NULL if
 * `b` and `start` are padded to whole vectors. */
static void NAME(product)(const struct product *p, float *edge)
{
    long j = 0;
    for (; j + 2 * VL <= p->columns; j += 2 * VL)
        NAME(product_columns)(2, p, p->b + j, p->b_row, p->start ? p->start + j : 0, p->c + j, 2 * VL);
    for (; j < p->columns; j += VL) {
        const int width = p->columns - j < VL ? (int)(p->columns - j) : VL;
        const float *b = p->b + j, *start = p->start ? p->start + j : 0;
        long b_row = p->b_row;
        float padded[VL] = {0};
        if (width < VL && edge) {
            for (long k = 0; k < p->depth; k++)
                for (int lane = 0; lane < VL; lane++) edge[k * VL + lane] = lane < width ? b[k * b_row + lane] : 0.0f;
            for (int lane = 0; start && lane < width; lane++) padded[lane] = start[lane];
            b = edge, b_row = VL, start = start ? padded : 0;
        }
        NAME(product_columns)(1, p, b, b_row, start, p->c + j, width);
    }
}
