/* Convolution (KxK, stride 1, no padding) + ReLU + 2x2 max-pooling, forward and backward.
 *
 * Forward: a lane is a sample, so that 3, 6 or 16 channels leave no lane empty. The samples of a register are
 * transposed to [H][W][C][VL]. The rows under the kernel stay in the L1 cache, and every weight is multiplied with a
 * register of samples.
 *
 * Backward: a lane is a position in a row of the kernel. After ReLU and max-pooling at most one of four outputs has a
 * gradient, so both gradients are sums over the short rows at the argmax: at most a quarter of the dense work. The
 * gradient of the weights is computed channel by channel, that of the input window by window, so that the sums stay in
 * registers.
 */

/* Compute T channels of one pooled pixel for VL samples. x: the corner of the window in rows [W][C][VL];
 * w: [K][C][K][T]. */
static INLINE void NAME(pixel)(const int T, const int K, const struct convpool *s, const float *x, const float *w,
                               const float *bias, float *y, uint8_t *arg)
{
    const long column = VL * s->c, row = column * s->w;
    V best[TILE];
    M place[TILE];
    UNROLL for (int o = 0; o < T; o++) best[o] = -__builtin_inff() - (V){0}, place[o] = (M){0};
    for (int first = 0; first < 4; first += PLACES, x += row) { /* positions of the 2x2 window */
        V sum[TILE][PLACES];
        const float *weight = w;
        UNROLL for (int o = 0; o < T; o++)
            UNROLL for (int q = 0; q < PLACES; q++) sum[o][q] = bias[o] - (V){0};
        for (int kh = 0; kh < K; kh++)
            for (int c = 0; c < s->c; c++) {
                const float *at = x + kh * row + c * VL;
                UNROLL for (int kw = 0; kw < K; kw++, at += column, weight += T) {
                    V input[PLACES]; /* in registers, like the sums and one weight */
                    UNROLL for (int q = 0; q < PLACES; q++) input[q] = LOAD(at + q / 2 * row + q % 2 * column);
                    UNROLL for (int o = 0; o < T; o++) {
                        const V factor = weight[o] - (V){0};
                        UNROLL for (int q = 0; q < PLACES; q++) sum[o][q] += input[q] * factor;
                    }
                }
            }
        UNROLL for (int o = 0; o < T; o++)
            UNROLL for (int q = 0; q < PLACES; q++) { /* the first maximum wins, and NaN wins, as in torch */
                M better = (sum[o][q] > best[o]) | (sum[o][q] != sum[o][q]);
                best[o] = (V)(((M)sum[o][q] & better) | ((M)best[o] & ~better));
                place[o] = (((M){0} + (first + q)) & better) | (place[o] & ~better);
            }
    }
    UNROLL for (int o = 0; o < T; o++) {
        STORE(y + o * s->channel * LANES, (V)((M)best[o] & ~(best[o] <= 0.0f)));
        if (arg) *(NAME(bytes) *)(arg + o * s->channel * LANES) = __builtin_convertvector(place[o], NAME(bytes));
    }
}

/* Call `pixel` with a constant kernel size for the common sizes. */
static INLINE void NAME(pixel_k)(const int T, const struct convpool *s, const float *x, const float *w,
                                 const float *bias, float *y, uint8_t *arg)
{
    if (s->k == 5) NAME(pixel)(T, 5, s, x, w, bias, y, arg);
    else if (s->k == 3) NAME(pixel)(T, 3, s, x, w, bias, y, arg);
    else NAME(pixel)(T, s->k, s, x, w, bias, y, arg);
}

/* Process sixteen samples: x [16 / VL][H][W][C][VL], w packed by `pack_tiles`, y and arg [elements][16]. */
static void NAME(forward)(const struct convpool *s, const float *x, const float *w, const float *bias, float *y,
                          uint8_t *arg)
{
    const long inputs = (long)s->c * s->h * s->w;
    for (int lane = 0; lane < LANES; lane += VL, x += inputs * VL)
        for (int py = 0; py < s->ph; py++)
            for (int o = 0; o < s->o; o += TILE) {
                const int tile = s->o - o < TILE ? s->o - o : TILE;
                const float *tile_w = w + (long)o * s->c * s->k * s->k;
                for (int px = 0; px < s->pw; px++) {
                    const float *corner = x + (2L * py * s->w + 2 * px) * s->c * VL;
                    const long e = (o * s->channel + (py * s->pw + px) * s->pixel) * LANES + lane;
                    uint8_t *a = arg ? arg + e : 0;
                    switch (tile) {
#define CASE(t) case t: NAME(pixel_k)(t, s, corner, tile_w, bias + o, y + e, a); break
                        CASE(1);
                        CASE(2);
                        CASE(3);
                        CASE(4);
                        CASE(5);
                        CASE(6);
#undef CASE
                    }
                }
            }
}

/* Add the gradient of R rows of N vectors of one channel's weights from one sample. */
static INLINE void NAME(weight_rows)(const int R, const int N, const struct convpool *s, const float *x,
                                     const struct active *list, int count, float *gw)
{
    V sum[5][4]; /* at most */
    const long row = (long)s->w * s->c;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N; j++) sum[r][j] = LOAD(gw + r * s->row + j * VL);
    for (int i = 0; i < count; i++) {
        const float *patch = x + list[i].at;
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int j = 0; j < N; j++) sum[r][j] += LOAD(patch + r * row + j * VL) * list[i].dy;
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N; j++) STORE(gw + r * s->row + j * VL, sum[r][j]);
}

/* Add the gradient of one channel's weights from one sample, in blocks that fit into registers. */
static void NAME(weight_gradient)(const struct convpool *s, const float *x, const struct active *list, int count,
                                  float *gw)
{
    const int n = s->row / VL;
    if (s->k == 5 && n == 1) NAME(weight_rows)(5, 1, s, x, list, count, gw);
    else if (s->k == 5 && n == 2) NAME(weight_rows)(5, 2, s, x, list, count, gw);
    else if (s->k == 5 && n == 4) {
        NAME(weight_rows)(2, 4, s, x, list, count, gw);
        NAME(weight_rows)(2, 4, s, x + 2L * s->w * s->c, list, count, gw + 2 * s->row);
        NAME(weight_rows)(1, 4, s, x + 4L * s->w * s->c, list, count, gw + 4 * s->row);
    } else
        for (int r = 0; r < s->k; r++)
            for (int j = 0; j < n; j += n - j < 4 ? 1 : 4) {
                const float *from = x + (long)r * s->w * s->c + j * VL;
                float *to = gw + r * s->row + j * VL;
                if (n - j < 4) NAME(weight_rows)(1, 1, s, from, list, count, to);
                else NAME(weight_rows)(1, 4, s, from, list, count, to);
            }
}

/* Add the gradient of R rows of N vectors of a window's input: the sum of the kernels of the active channels, each
 * shifted to the position of its maximum. */
static INLINE void NAME(input_rows)(const int R, const int N, const struct convpool *s, const float *w,
                                    const struct active *list, int count, float *dx)
{
    V sum[3][5]; /* at most */
    const long row = (long)s->w * s->c;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N; j++) sum[r][j] = (V){0};
    for (int i = 0; i < count; i++)
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int j = 0; j < N; j++) sum[r][j] += LOAD(w + list[i].at + r * s->framed + j * VL) * list[i].dy;
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int j = 0; j < N; j++) {
            float *to = dx + r * row + j * VL; /* loaded late, because its neighbours were just stored */
            STORE(to, LOAD(to) + sum[r][j]);
        }
}

/* Add the gradient of one sample's input from one window: k + 1 rows of k + 1 pixels. */
static void NAME(input_gradient)(const struct convpool *s, const float *w, const struct active *list, int count,
                                 float *dx)
{
    const int n = ((s->k + 1) * s->c + VL - 1) / VL;
    const long row = (long)s->w * s->c;
    if (s->k == 5 && n == 5)
        for (int r = 0; r < 6; r += 2) NAME(input_rows)(2, 5, s, w + r * s->framed, list, count, dx + r * row);
    else if (s->k == 5 && n == 3)
        for (int r = 0; r < 6; r += 3) NAME(input_rows)(3, 3, s, w + r * s->framed, list, count, dx + r * row);
    else
        for (int r = 0; r <= s->k; r++)
            for (int j = 0; j < n; j++)
                NAME(input_rows)(1, 1, s, w + r * s->framed + j * VL, list, count, dx + r * row + j * VL);
}
