/* A network of attention blocks: the sum of its squared errors, with its gradient, in one pass over
 * the samples. The formulas are in papers/song2024/layer.py and papers/qin2025/blocks.py; tests
 * compare them. For a sequence x (n x D) and every block, with heads h,
 *
 *   q_h = x Q_h,  k_h = x K_h,  v_h = x V_h,  S_h from scores of q_h and k_h,
 *   a = keep_a x + branch sum of S_h v_h,  x' = keep_f a + branch phi(a W_1) W_2,
 *
 * or x' = a if there are no hidden units (m = 0). Outputs are x' U of the last block, or x' itself
 * if U has no rows. Scores are products or squared distances, weights their softmax or exponential.
 *
 *   in:  X (N, n, D), Y (N, n, c), Q (L, H, D, k), K (L, H, D, k), V (L, H, D, p), W_1 (L, D, m),
 *        W_2 (L, m, p), U (p or 0, c),
 *        numbers: factor of scores, factor of weights, keep_a, keep_f, branch, slope of phi
 *        choices: distances?, softmax?, causal?, phi (0 leaky ReLU, 1 smooth leaky ReLU)
 *   out: sum of squared errors, its gradients by Q, K, V, W_1, W_2 and U, room to work in
 *
 * Leading axes that all share are a batch. Why by hand: sequences are matrices of ten rows, which
 * XLA multiplies one after the other, and its larger products run at half the rate of a good one.
 * Here some samples pass through all blocks and back while what they leave stays near one core. How
 * samples are divided depends on shapes alone, and sums are made in a fixed order: the result does
 * not depend on threads. */

#include "native.h"

#define ROWS 96         /* tokens that pass through together, at least, if there are so many */
#define PER_SHARE 1.5e6 /* operations, roughly */
#define MOST_SHARES 8
#define SERIAL 40000 /* weights up to which one thread lays them out */
#define MASKED ((REAL)-1e9)

/* Offsets of what is kept of a block of the network, or of the network, in numbers. */
typedef struct {
    int64_t qkv, first, second, size; /* weights: D x qkv, D x hidden, m x values */
} Layout;

typedef struct {
    int64_t N, n, D, c, L, H, k, p, m; /* p is the width of a */
    int reads;                         /* whether there is a U */
    int distances, softmax, causal, smooth;
    int64_t keys, values;                         /* k and p, filled up */
    int64_t dim_row, qkv_row, a_row, m_row, c_row, n_row; /* lengths of rows */
    int64_t shares, samples;                      /* samples that pass through together */
    Layout plain, turned;                         /* weights, and their transposes */
    int64_t weights, transposes, kept;            /* numbers in all; kept of a block of samples */
    REAL score, factor, keep_a, keep_f, branch, slope;
    const REAL *X, *Y, *W[6]; /* Q, K, V, W_1, W_2, U */
    REAL *G[6], *value;
    REAL *laid_out, *turned_at, *sums, *rooms, *totals;
} Network;

static int64_t qkv_columns(const Network *p) { return p->H * (2 * p->keys + p->values); }

static Network planned(const int64_t *X, int64_t c, const int64_t *Q, int64_t value, int64_t m,
                       int64_t reads)
{
    Network p = {.N = X[0], .n = X[1], .D = X[2], .c = c, .L = Q[0], .H = Q[1], .k = Q[3],
                 .p = value, .m = m, .reads = reads != 0};
    p.keys = up(p.k, LANES);
    p.values = up(p.p, LANES);
    p.dim_row = row_length(p.D);
    p.qkv_row = row_length(qkv_columns(&p));
    p.a_row = p.p == p.D ? p.dim_row : row_length(p.p);
    p.m_row = row_length(m);
    p.c_row = row_length(c);
    p.n_row = up(p.n, LANES);
    p.plain = (Layout){0, p.D * p.qkv_row, 0, 0};
    p.plain.second = p.plain.first + p.D * p.m_row;
    p.plain.size = p.plain.second + m * p.a_row;
    p.turned = (Layout){0, qkv_columns(&p) * p.dim_row, 0, 0};
    p.turned.second = p.turned.first + m * p.a_row;
    p.turned.size = p.turned.second + (m ? p.p * p.m_row : 0);
    p.weights = p.L * p.plain.size + p.p * p.c_row;
    p.transposes = p.L * p.turned.size + c * p.a_row;
    const double all = 6.0 * p.N * p.n * p.L *
                       (p.D * p.H * (2 * p.k + p.p) + 2 * p.D * m + p.n * p.H * (p.k + p.p));
    p.shares = 1;
    while (p.shares < MOST_SHARES && 2 * p.shares <= p.N && p.shares * PER_SHARE < all)
        p.shares *= 2;
    const int64_t most = up(p.N, p.shares) / p.shares, passes = up(most * p.n, ROWS) / ROWS;
    p.samples = up(most, passes) / passes;
    const int64_t rows = p.samples * p.n;
    /* of every block x, q k v, weights, a, phi and its slope; then x', gradients, a head's room */
    p.kept = p.L * rows * (p.dim_row + p.qkv_row + p.H * p.n_row + p.a_row + 2 * p.m_row) +
             rows * (p.a_row + 2 * p.dim_row + 2 * p.a_row + p.m_row + p.qkv_row + p.c_row) +
             p.n_row * (p.k + p.p + p.n);
    return p;
}

static int64_t room_of(const Network *p)
{
    return p->weights + p->transposes + p->shares * (p->weights + p->kept + 1);
}

int64_t attention_blocks_room(const int64_t *sizes) /* N n D c L H k p m reads */
{
    const int64_t Q[] = {sizes[4], sizes[5], sizes[2], sizes[6]};
    const Network p = planned(sizes, sizes[3], Q, sizes[7], sizes[8], sizes[9]);
    return room_of(&p);
}

/* ------------------------------------------------------------------------------------- weights */

/* A matrix with its rows filled up, and its transpose. */
static void lay_out(REAL *plain, int64_t row, REAL *turned, int64_t turned_row, const REAL *W,
                    int64_t rows, int64_t columns, REAL scale)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) plain[i * row + j] = scale * W[i * columns + j];
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++) turned[j * turned_row + i] = scale * W[i * columns + j];
}

/* Weights of one block; beyond the last one U. */
static void lay_out_block(void *problem, int64_t number)
{
    const Network *p = (Network *)problem + number / (((Network *)problem)->L + 1);
    const int64_t l = number % (p->L + 1), D = p->D, H = p->H, k = p->k, v = p->p, m = p->m;
    REAL *plain = p->laid_out + l * p->plain.size, *turned = p->turned_at + l * p->turned.size;
    if (l == p->L) {
        memset(plain, 0, sizeof(REAL) * v * p->c_row);
        memset(turned, 0, sizeof(REAL) * p->c * p->a_row);
        if (p->reads) lay_out(plain, p->c_row, turned, p->a_row, p->W[5], v, p->c, 1);
        return;
    }
    memset(plain, 0, sizeof(REAL) * p->plain.size);
    memset(turned, 0, sizeof(REAL) * p->turned.size);
    for (int64_t h = 0; h < H; h++)
        for (int part = 0; part < 3; part++) {
            const int64_t at = part < 2 ? (part * H + h) * p->keys : 2 * H * p->keys + h * p->values;
            const int64_t width = part < 2 ? k : v;
            const REAL scale = part == 2 ? p->branch : part == 0 && !p->distances ? p->score : 1;
            lay_out(plain + at, p->qkv_row, turned + at * p->dim_row, p->dim_row,
                    p->W[part] + (l * H + h) * D * width, D, width, scale);
        }
    if (!m) return;
    lay_out(plain + p->plain.first, p->m_row, turned + p->turned.first, p->a_row,
            p->W[3] + l * D * m, D, m, 1);
    lay_out(plain + p->plain.second, p->a_row, turned + p->turned.second, p->m_row,
            p->W[4] + l * m * v, m, v, p->branch);
}

static void take_out(REAL *W, const REAL *plain, int64_t row, int64_t rows, int64_t columns,
                     REAL scale)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) W[i * columns + j] = scale * plain[i * row + j];
}

/* Sums of gradients over shares, of one block; beyond the last one those of U. */
static void take_out_block(void *problem, int64_t number)
{
    const Network *p = (Network *)problem + number / (((Network *)problem)->L + 1);
    const int64_t l = number % (p->L + 1), D = p->D, H = p->H, k = p->k, v = p->p, m = p->m;
    REAL *sum = p->sums + l * p->plain.size;
    const int64_t size = l == p->L ? v * p->c_row : p->plain.size;
    for (int64_t s = 1; s < p->shares; s++)
        for (int64_t j = 0; j < size; j += LANES)
            *(vec *)(sum + j) += *(vec *)(sum + s * p->weights + j);
    if (l == p->L) {
        if (p->reads) take_out(p->G[5], sum, p->c_row, v, p->c, 1);
        return;
    }
    for (int64_t h = 0; h < H; h++)
        for (int part = 0; part < 3; part++) {
            const int64_t at = part < 2 ? (part * H + h) * p->keys : 2 * H * p->keys + h * p->values;
            const int64_t width = part < 2 ? k : v;
            const REAL scale = part == 2 ? p->branch : part == 0 && !p->distances ? p->score : 1;
            take_out(p->G[part] + (l * H + h) * D * width, sum + at, p->qkv_row, D, width, scale);
        }
    if (!m) return;
    take_out(p->G[3] + l * D * m, sum + p->plain.first, p->m_row, D, m, 1);
    take_out(p->G[4] + l * m * v, sum + p->plain.second, p->a_row, m, v, p->branch);
}

/* ----------------------------------------------------------------------------------- attention */

/* What one sample and head have at hand. In S a query runs along a row: sums over keys are sums of
 * rows. */
typedef struct {
    const REAL *q, *k, *v;
    REAL *S;
} Head;

static Head head_of(const Network *p, const REAL *qkv, REAL *S, int64_t sample, int64_t h)
{
    const REAL *row = qkv + sample * p->n * p->qkv_row;
    return (Head){row + h * p->keys, row + (p->H + h) * p->keys,
                  row + 2 * p->H * p->keys + h * p->values,
                  S + (sample * p->H + h) * p->n * p->n_row};
}

static void squared_distances(const Network *p, const Head *head, const REAL *q)
{
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->n_row; i += LANES) {
            vec sum = {};
            for (int64_t c = 0; c < p->k; c++) {
                const vec apart = *(vec *)(q + c * p->n_row + i) - head->k[j * p->qkv_row + c];
                sum += apart * apart;
            }
            *(vec *)(head->S + j * p->n_row + i) = -p->score * sum;
        }
}

static void weigh(const Network *p, REAL *S)
{
    const int64_t n = p->n, row = p->n_row;
    for (int64_t j = 1; p->causal && j < n; j++)
        for (int64_t i = 0; i < j; i++) S[j * row + i] = p->softmax ? MASKED : -__builtin_inf();
    for (int64_t i = 0; i < row; i += LANES) {
        vec top = *(vec *)(S + i), sum = {};
        if (!p->softmax) top = (vec){};
        for (int64_t j = 1; p->softmax && j < n; j++) top = larger(*(vec *)(S + j * row + i), top);
        for (int64_t j = 0; j < n; j++) {
            vec *of = (vec *)(S + j * row + i);
            *of = exponential(*of - top);
            sum += *of;
        }
        const vec scale = p->softmax ? p->factor / sum : (vec){} + p->factor;
        for (int64_t j = 0; j < n; j++) *(vec *)(S + j * row + i) *= scale;
    }
}

/* a += S v of every sample and head. */
static void attend(const Network *p, int64_t samples, const REAL *qkv, REAL *S, REAL *a, REAL *room)
{
    const int64_t n = p->n, row = p->n_row;
    for (int64_t s = 0; s < samples; s++)
        for (int64_t h = 0; h < p->H; h++) {
            const Head head = head_of(p, qkv, S, s, h);
            transpose(room, row, head.q, p->qkv_row, n, p->k);
            if (p->distances)
                squared_distances(p, &head, room);
            else
                product(head.S, row, n, row, head.k, p->qkv_row, 1, room, row, p->k, 0);
            weigh(p, head.S);
            product(a + s * n * p->a_row, p->a_row, n, p->values, head.S, 1, row, head.v,
                    p->qkv_row, n, 1);
        }
}

/* The gradient by scores, from that by weights. */
static void pull_weights(const Network *p, const REAL *S, REAL *T)
{
    const int64_t n = p->n, row = p->n_row;
    for (int64_t i = 0; i < row; i += LANES) {
        vec mean = {};
        for (int64_t j = 0; p->softmax && j < n; j++)
            mean += *(vec *)(S + j * row + i) * *(vec *)(T + j * row + i);
        for (int64_t j = 0; j < n; j++) {
            vec *of = (vec *)(T + j * row + i);
            *of = *(vec *)(S + j * row + i) * (*of - mean);
        }
    }
}

/* Gradients by queries and keys of scores that are squared distances. */
static void pull_distances(const Network *p, const Head *head, const REAL *T, REAL *dq, REAL *dk)
{
    const int64_t n = p->n, row = p->qkv_row;
    for (int64_t c = 0; c < p->keys; c += LANES) {
        for (int64_t j = 0; j < n; j++) *(vec *)(dk + j * row + c) = (vec){};
        for (int64_t i = 0; i < n; i++) {
            const vec q = *(vec *)(head->q + i * row + c);
            vec sum = {};
            for (int64_t j = 0; j < n; j++) {
                const vec apart = *(vec *)(head->k + j * row + c) - q;
                const vec part = 2 * p->score * T[j * p->n_row + i] * apart;
                sum += part;
                *(vec *)(dk + j * row + c) -= part;
            }
            *(vec *)(dq + i * row + c) = sum;
        }
    }
}

/* The gradient by q, k and v of every sample and head, from that by a. */
static void pull_attention(const Network *p, int64_t samples, const REAL *qkv, REAL *S,
                           const REAL *da, REAL *dqkv, REAL *room)
{
    const int64_t n = p->n, row = p->n_row, wide = p->qkv_row;
    REAL *turned = room, *T = turned + row * p->p;
    for (int64_t s = 0; s < samples; s++) {
        const REAL *d = da + s * n * p->a_row;
        transpose(turned, row, d, p->a_row, n, p->p);
        for (int64_t h = 0; h < p->H; h++) {
            const Head head = head_of(p, qkv, S, s, h), to = head_of(p, dqkv, S, s, h);
            REAL *dq = (REAL *)to.q, *dk = (REAL *)to.k, *dv = (REAL *)to.v;
            product(dv, wide, n, p->values, head.S, row, 1, d, p->a_row, n, 0);
            product(T, row, n, row, head.v, wide, 1, turned, row, p->p, 0);
            pull_weights(p, head.S, T);
            if (p->distances) {
                pull_distances(p, &head, T, dq, dk);
                continue;
            }
            product(dq, wide, n, p->keys, T, 1, row, head.k, wide, n, 0);
            product(dk, wide, n, p->keys, T, row, 1, head.q, wide, n, 0);
        }
    }
}

/* ---------------------------------------------------------------------------------- hidden units */

/* phi of `size` numbers in place; of the smooth one also its slope. */
static void activate(const Network *p, REAL *phi, REAL *slope, int64_t size)
{
    const REAL rest = 1 - p->slope;
    for (int64_t j = 0; j < size; j += LANES) {
        const vec x = *(vec *)(phi + j);
        if (!p->smooth) {
            *(vec *)(phi + j) = choose(x > 0, x, p->slope * x);
            continue;
        }
        /* log((1 + exp(x)) / 2) without cancellation: less = exp(-|x|) - 1 */
        const vec less = below_one(-absolute(x)), none = {}, one = none + 1, e = one + less;
        *(vec *)(phi + j) = p->slope * x + rest * (larger(x, none) + log_of_one_and(less / 2));
        *(vec *)(slope + j) = p->slope + rest * choose(x > 0, one, e) / (1 + e);
    }
}

/* d times the slope of phi, in place. */
static void pull_activation(const Network *p, REAL *d, const REAL *phi, const REAL *slope,
                            int64_t size)
{
    for (int64_t j = 0; j < size; j += LANES) {
        vec *of = (vec *)(d + j);
        if (p->smooth)
            *of *= *(vec *)(slope + j);
        else
            *of = choose(*(vec *)(phi + j) > 0, *of, p->slope * *of);
    }
}

/* ------------------------------------------------------------------------- through the network */

static void scaled(REAL *to, const REAL *from, REAL scale, int64_t size)
{
    if (scale == 0)
        memset(to, 0, sizeof(REAL) * size);
    else
        for (int64_t j = 0; j < size; j += LANES) *(vec *)(to + j) = scale * *(vec *)(from + j);
}

/* What some samples leave behind in a block of the network. */
typedef struct {
    REAL *x, *qkv, *S, *a, *phi, *slope;
} Trace;

static Trace trace_of(const Network *p, REAL *room, int64_t l)
{
    const int64_t rows = p->samples * p->n;
    REAL *x = room + l * rows * (p->dim_row + p->qkv_row + p->H * p->n_row + p->a_row +
                                 2 * p->m_row);
    REAL *qkv = x + rows * p->dim_row, *S = qkv + rows * p->qkv_row;
    REAL *a = S + rows * p->H * p->n_row, *phi = a + rows * p->a_row;
    return (Trace){x, qkv, S, a, phi, phi + rows * p->m_row};
}

/* The next x, from t.x. Without hidden units it is a itself. */
static void forwards(const Network *p, int64_t samples, const Trace *t, const REAL *W, REAL *next,
                     REAL *room)
{
    const int64_t rows = samples * p->n, hidden = up(p->m, LANES);
    REAL *a = p->m ? t->a : next;
    product(t->qkv, p->qkv_row, rows, qkv_columns(p), t->x, p->dim_row, 1, W, p->qkv_row, p->D, 0);
    scaled(a, t->x, p->keep_a, rows * p->a_row);
    attend(p, samples, t->qkv, t->S, a, room);
    if (!p->m) return;
    product(t->phi, p->m_row, rows, hidden, a, p->a_row, 1, W + p->plain.first, p->m_row, p->p, 0);
    activate(p, t->phi, t->slope, rows * p->m_row);
    scaled(next, a, p->keep_f, rows * p->a_row);
    product(next, p->a_row, rows, p->values, t->phi, p->m_row, 1, W + p->plain.second, p->a_row,
            p->m, 1);
}

/* Room for gradients of some samples. */
typedef struct {
    REAL *d, *da, *dm, *dqkv, *head;
} Pull;

/* The gradient by t.x, in and out in pull.d; gradients by weights are added to sums. */
static void backwards(const Network *p, int64_t samples, const Trace *t, const REAL *W, REAL *sums,
                      const Pull *pull, int first)
{
    const int64_t rows = samples * p->n, hidden = up(p->m, LANES), columns = qkv_columns(p);
    REAL *da = pull->d;
    if (p->m) {
        da = pull->da;
        product(pull->dm, p->m_row, rows, hidden, pull->d, p->a_row, 1, W + p->turned.second,
                p->m_row, p->p, 0);
        product(sums + p->plain.second, p->a_row, p->m, p->values, t->phi, 1, p->m_row, pull->d,
                p->a_row, rows, 1);
        pull_activation(p, pull->dm, t->phi, t->slope, rows * p->m_row);
        scaled(da, pull->d, p->keep_f, rows * p->a_row);
        product(da, p->a_row, rows, p->values, pull->dm, p->m_row, 1, W + p->turned.first, p->a_row,
                p->m, 1);
        product(sums + p->plain.first, p->m_row, p->p, hidden, t->a, 1, p->a_row, pull->dm,
                p->m_row, rows, 1);
    }
    pull_attention(p, samples, t->qkv, t->S, da, pull->dqkv, pull->head);
    product(sums, p->qkv_row, p->D, columns, t->x, 1, p->dim_row, pull->dqkv, p->qkv_row, rows, 1);
    if (first) return;
    scaled(pull->d, da, p->keep_a, rows * p->dim_row);
    product(pull->d, p->dim_row, rows, up(p->D, LANES), pull->dqkv, p->qkv_row, 1, W, p->dim_row,
            columns, 1);
}

/* Errors of outputs in place, and the sum of their squares. */
static REAL errors(const Network *p, int64_t rows, const REAL *Y, REAL *out, int64_t row)
{
    REAL sum = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < p->c; j++) {
            REAL *e = out + i * row + j;
            *e -= Y[i * p->c + j];
            sum += *e * *e;
        }
    return sum;
}

/* Some samples through the network and, if sums are given, back. */
static REAL pass(const Network *p, int64_t from, int64_t samples, REAL *sums, REAL *room)
{
    const int64_t rows = samples * p->n, most = p->samples * p->n, L = p->L;
    REAL *last = trace_of(p, room, L).x, *d = last + most * p->a_row;
    REAL *da = d + 2 * most * p->dim_row, *dm = da + 2 * most * p->a_row;
    REAL *dqkv = dm + most * p->m_row, *out = dqkv + most * p->qkv_row;
    const Pull pull = {d, da, dm, dqkv, out + most * p->c_row};
    REAL *x = trace_of(p, room, 0).x;
    memset(x, 0, sizeof(REAL) * rows * p->dim_row);
    for (int64_t i = 0; i < rows; i++)
        memcpy(x + i * p->dim_row, p->X + (from * p->n + i) * p->D, sizeof(REAL) * p->D);
    for (int64_t l = 0; l < L; l++) {
        const Trace t = trace_of(p, room, l);
        REAL *next = l + 1 < L ? trace_of(p, room, l + 1).x : last;
        forwards(p, samples, &t, p->laid_out + l * p->plain.size, next, pull.head);
    }
    const REAL *U = p->laid_out + L * p->plain.size, *turned = p->turned_at + L * p->turned.size;
    const REAL *Y = p->Y + from * p->n * p->c;
    REAL *outputs = p->reads ? out : last;
    const int64_t row = p->reads ? p->c_row : p->a_row;
    if (p->reads)
        product(out, row, rows, up(p->c, LANES), last, p->a_row, 1, U, p->c_row, p->p, 0);
    const REAL sum = errors(p, rows, Y, outputs, row);
    if (!sums) return sum;
    scaled(outputs, outputs, 2, rows * row);
    if (p->reads) {
        product(sums + L * p->plain.size, row, p->p, up(p->c, LANES), last, 1, p->a_row, out, row,
                rows, 1);
        product(d, p->a_row, rows, p->values, out, row, 1, turned, p->a_row, p->c, 0);
    } else {
        memcpy(d, last, sizeof(REAL) * rows * row);
    }
    for (int64_t l = L - 1; l >= 0; l--) {
        const Trace t = trace_of(p, room, l);
        backwards(p, samples, &t, p->turned_at + l * p->turned.size, sums + l * p->plain.size,
                  &pull, l == 0);
    }
    return sum;
}

static void through(const Network *p, int64_t share, int gradient)
{
    const int64_t last = p->N * (share + 1) / p->shares;
    REAL *sums = gradient ? p->sums + share * p->weights : NULL, total = 0;
    if (gradient) memset(sums, 0, sizeof(REAL) * p->weights);
    for (int64_t from = p->N * share / p->shares; from < last; from += p->samples)
        total += pass(p, from, least(p->samples, last - from), sums, p->rooms + share * p->kept);
    p->totals[share] = total;
}

static void step_share(void *problem, int64_t number)
{
    const Network *p = (Network *)problem + number / ((Network *)problem)->shares;
    through(p, number % p->shares, 1);
}

static void value_share(void *problem, int64_t number)
{
    const Network *p = (Network *)problem + number / ((Network *)problem)->shares;
    through(p, number % p->shares, 0);
}

/* ------------------------------------------------------------------------------------------ call */

static void connect(XLA_FFI_CallFrame *frame, Network *p, int64_t b, int gradient)
{
    const REAL *numbers = (REAL *)argument(frame, 8)->data + 6 * b;
    const int32_t *choices = (int32_t *)argument(frame, 9)->data + 4 * b;
    p->score = numbers[0], p->factor = numbers[1], p->keep_a = numbers[2], p->keep_f = numbers[3];
    p->branch = numbers[4], p->slope = numbers[5];
    p->distances = choices[0], p->softmax = choices[1], p->causal = choices[2];
    p->smooth = choices[3];
    const int64_t of_q = p->L * p->H * p->D * p->k, of_v = p->L * p->H * p->D * p->p;
    const int64_t hidden = p->L * p->m, read = p->reads ? p->p * p->c : 0;
    const int64_t sizes[] = {of_q, of_q, of_v, hidden * p->D, hidden * p->p, read};
    p->X = (REAL *)argument(frame, 0)->data + b * p->N * p->n * p->D;
    p->Y = (REAL *)argument(frame, 1)->data + b * p->N * p->n * p->c;
    p->value = result(frame, 0) + b;
    for (int w = 0; w < 6; w++) {
        p->W[w] = (REAL *)argument(frame, 2 + w)->data + b * sizes[w];
        if (gradient) p->G[w] = result(frame, 1 + w) + b * sizes[w];
    }
    p->laid_out = result(frame, gradient ? 7 : 1) + b * room_of(p);
    p->turned_at = p->laid_out + p->weights;
    p->sums = p->turned_at + p->transposes;
    p->rooms = p->sums + p->shares * p->weights;
    p->totals = p->rooms + p->shares * p->kept;
}

static XLA_FFI_Error *run(XLA_FFI_CallFrame *frame, int gradient)
{
    if (only_asked(frame)) return NULL;
    const int64_t batch = batch_of(frame, 0, 3), axes = argument(frame, 0)->rank - 3;
    const int64_t *V = argument(frame, 4)->dims + axes, *W_1 = argument(frame, 5)->dims + axes;
    const int64_t *U = argument(frame, 7)->dims + axes;
    const Network plan = planned(argument(frame, 0)->dims + axes, U[1],
                                 argument(frame, 2)->dims + axes, V[3], W_1[2], U[0]);
    Network *networks = malloc(batch * sizeof(Network));
    if (!networks) return failure(frame, "no memory for the attention blocks");
    for (int64_t b = 0; b < batch; b++) {
        networks[b] = plan;
        connect(frame, networks + b, b, gradient);
    }
    const int64_t parts = batch * (plan.L + 1);
    const int serial = batch * plan.weights <= SERIAL;
    XLA_FFI_Error *error = NULL;
    for (int64_t k = 0; serial && k < parts; k++) lay_out_block(networks, k);
    if (!serial) error = share_out(frame, lay_out_block, networks, parts);
    if (!error)
        error = share_out(frame, gradient ? step_share : value_share, networks,
                          batch * plan.shares);
    if (!error && gradient) {
        for (int64_t k = 0; serial && k < parts; k++) take_out_block(networks, k);
        if (!serial) error = share_out(frame, take_out_block, networks, parts);
    }
    for (int64_t b = 0; b < batch; b++) {
        *networks[b].value = 0;
        for (int64_t s = 0; s < plan.shares; s++) *networks[b].value += networks[b].totals[s];
    }
    free(networks);
    return error;
}

XLA_FFI_Error *attention_blocks(XLA_FFI_CallFrame *frame) { return run(frame, 1); }
XLA_FFI_Error *attention_blocks_value(XLA_FFI_CallFrame *frame) { return run(frame, 0); }
