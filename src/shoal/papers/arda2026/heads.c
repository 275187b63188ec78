/* The heads of arda2026: the sum of squared errors, with its gradient, in one pass over the samples.
 * The formulas are in heads.py; tests compare the two. For tokens x_t, a query q and every head,
 *
 *   key = W q,  a_t = softmax over t of x_t . key,  s_t = U . x_t,  g = sum of a_t s_t,
 *   f = scale sum over heads of c phi(g),  e = f - y,  r = 2 e scale c phi'(g),
 *
 * the gradient is 2 e scale phi(g) by c, sum of r a_t x_t by U, sum of r a_t (s_t - g) x_t q^T by W.
 *
 *   in:  X (N, T, d), q (N, d), y (N), W (m, d, d), U (m, d), c (m), scale (1),
 *        phi (1): 0 tanh, 1 logistic
 *   out: sum of e^2, its gradients by W, U and c, room to work in
 *
 * Leading axes that all share are a batch. A vector holds heads. Some samples are taken at a time:
 * their weights and s stay in the cache of one core between the pass to e and the pass back. How
 * samples are divided depends on shapes alone, and sums are made in a fixed order: the result does
 * not depend on threads. */

#include "native.h"

#define VECTORS 8 /* of heads that are taken together */
#define CACHE (1 << 18) /* bytes of weights and s that are kept */
#define MOST_SAMPLES 48
#define PER_SHARE 2e6 /* operations, roughly */
#define MOST_SHARES 8

typedef struct {
    int64_t N, T, d, m;
    int64_t groups, width; /* groups of heads, and heads of each, filled up */
    int64_t shares, samples, weights, kept;
    int logistic;
    REAL scale;
    const REAL *X, *q, *y, *W, *U, *c;
    REAL *value, *dW, *dU, *dc;
    REAL *laid_out, *sums, *rooms, *totals;
} Heads;

static int64_t group_size(const Heads *p) { return (p->d * p->d + p->d + 1) * p->width; }
static int64_t kept_of_sample(const Heads *p) { return p->groups * p->width * (2 * p->T + 3); }

static Heads planned(const int64_t *X, int64_t m)
{
    Heads p = {.N = X[0], .T = X[1], .d = X[2], .m = m};
    const int64_t vectors = up(m, LANES) / LANES;
    p.groups = up(vectors, VECTORS) / VECTORS;
    p.width = up(vectors, p.groups) / p.groups * LANES;
    p.weights = p.groups * group_size(&p);
    p.shares = 1;
    const double all = 2.0 * p.N * m * (2 * p.d * p.d + 4 * p.T * p.d + 8 * p.T);
    while (p.shares < MOST_SHARES && 2 * p.shares <= p.N && p.shares * PER_SHARE < all)
        p.shares *= 2;
    const int64_t fit = CACHE / (int64_t)sizeof(REAL) / kept_of_sample(&p);
    p.samples = least(least(fit < 6 ? 6 : fit, MOST_SAMPLES), up(p.N, p.shares) / p.shares);
    p.kept = p.samples * (kept_of_sample(&p) + p.d * p.width + 1);
    return p;
}

static int64_t room_of(const Heads *p) { return p->weights + p->shares * (p->weights + p->kept + 1); }

int64_t heads_room(int64_t N, int64_t T, int64_t d, int64_t m)
{
    const int64_t shape[] = {N, T, d};
    const Heads p = planned(shape, m);
    return room_of(&p);
}

/* Weights of every group as rows of heads: W^T (d x d x width), U (d x width), c (width). */
static void lay_out(const Heads *p)
{
    const int64_t d = p->d, width = p->width;
    memset(p->laid_out, 0, sizeof(REAL) * p->weights);
    for (int64_t h = 0; h < p->m; h++) {
        REAL *group = p->laid_out + h / width * group_size(p) + h % width;
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) group[(j * d + i) * width] = p->W[(h * d + i) * d + j];
        group += d * d * width;
        for (int64_t i = 0; i < d; i++) group[i * width] = p->U[h * d + i];
        group[d * width] = p->c[h];
    }
}

static void take_out(const Heads *p)
{
    const int64_t d = p->d, width = p->width;
    for (int64_t s = 1; s < p->shares; s++)
        for (int64_t j = 0; j < p->weights; j += LANES)
            *(vec *)(p->sums + j) += *(vec *)(p->sums + s * p->weights + j);
    for (int64_t h = 0; h < p->m; h++) {
        const REAL *group = p->sums + h / width * group_size(p) + h % width;
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < d; j++) p->dW[(h * d + i) * d + j] = group[(j * d + i) * width];
        group += d * d * width;
        for (int64_t i = 0; i < d; i++) p->dU[h * d + i] = group[i * width];
        p->dc[h] = group[d * width];
    }
}

/* What is kept of a sample and a group of heads: weights before they are divided by their sum, s,
 * and of every head g, phi(g), and c phi'(g) over that sum. */
typedef struct {
    REAL *weights, *s, *g, *phi, *slope;
} Seen;

static Seen seen_by(const Heads *p, REAL *room, int64_t sample, int64_t group)
{
    const int64_t size = p->width * (2 * p->T + 3), part = p->T * p->width;
    REAL *at = room + (sample * p->groups + group) * size, *g = at + 2 * part;
    return (Seen){at, at + part, g, g + p->width, g + 2 * p->width};
}

/* Weights, g and phi of a sample, from scores; returns phi times c, a vector of sums. */
static vec attend(const Heads *p, const Seen *seen, const REAL *c)
{
    const int64_t width = p->width, T = p->T;
    vec f = {};
    for (int64_t h = 0; h < width; h += LANES) {
        vec top = *(vec *)(seen->weights + h), total = {}, sum = {};
        for (int64_t t = 1; t < T; t++) top = larger(*(vec *)(seen->weights + t * width + h), top);
        for (int64_t t = 0; t < T; t++) {
            vec *of = (vec *)(seen->weights + t * width + h);
            *of = exponential(*of - top);
            total += *of;
            sum += *of * *(vec *)(seen->s + t * width + h);
        }
        const vec g = sum / total, factor = *(vec *)(c + h);
        const vec e = exponential(-absolute(g)), one = (vec){} + 1;
        const vec phi = p->logistic ? choose(g > 0, one, e) / (1 + e) : tangent_h(g);
        const vec slope = p->logistic ? e / ((1 + e) * (1 + e)) : 1 - phi * phi;
        *(vec *)(seen->g + h) = g;
        *(vec *)(seen->phi + h) = phi;
        *(vec *)(seen->slope + h) = factor * slope / total;
        f += factor * phi;
    }
    return f;
}

/* In place: weights become r a_t and s becomes r a_t (s_t - g); the gradient by c is added to dc. */
static void pull(const Heads *p, const Seen *seen, REAL twice_e, REAL *dc)
{
    const int64_t width = p->width;
    for (int64_t h = 0; h < width; h += LANES) {
        const vec r = twice_e * *(vec *)(seen->slope + h), g = *(vec *)(seen->g + h);
        for (int64_t t = 0; t < p->T; t++) {
            vec *a = (vec *)(seen->weights + t * width + h), *s = (vec *)(seen->s + t * width + h);
            *a *= r;
            *s = *a * (*s - g);
        }
        *(vec *)(dc + h) += twice_e * *(vec *)(seen->phi + h);
    }
}

/* Errors of some samples; what is kept of them stays in the room. */
static void to_errors(const Heads *p, int64_t from, int64_t samples, REAL *e, REAL *keys, REAL *room)
{
    const int64_t d = p->d, T = p->T, width = p->width;
    for (int64_t n = 0; n < samples; n++) e[n] = 0;
    for (int64_t group = 0; group < p->groups; group++) {
        const REAL *W = p->laid_out + group * group_size(p), *U = W + d * d * width;
        product(keys, d * width, samples, d * width, p->q + from * d, d, 1, W, d * width, d, 0);
        for (int64_t n = 0; n < samples; n++) {
            const REAL *x = p->X + (from + n) * T * d;
            const Seen seen = seen_by(p, room, n, group);
            product(seen.weights, width, T, width, x, d, 1, keys + n * d * width, width, d, 0);
            product(seen.s, width, T, width, x, d, 1, U, width, d, 0);
            const vec f = attend(p, &seen, U + d * width);
            for (int64_t lane = 0; lane < LANES; lane++) e[n] += f[lane];
        }
    }
    for (int64_t n = 0; n < samples; n++) e[n] = p->scale * e[n] - p->y[from + n];
}

/* The gradient of some samples, added to sums. */
static void from_errors(const Heads *p, int64_t from, int64_t samples, const REAL *e, REAL *keys,
                        REAL *room, REAL *sums)
{
    const int64_t d = p->d, T = p->T, width = p->width;
    for (int64_t group = 0; group < p->groups; group++, sums += group_size(p)) {
        REAL *dU = sums + d * d * width;
        for (int64_t n = 0; n < samples; n++) {
            const REAL *x = p->X + (from + n) * T * d;
            const Seen seen = seen_by(p, room, n, group);
            pull(p, &seen, 2 * e[n] * p->scale, dU + d * width);
            product(dU, width, d, width, x, 1, d, seen.weights, width, T, 1);
            product(keys + n * d * width, width, d, width, x, 1, d, seen.s, width, T, 0);
        }
        product(sums, d * width, d, d * width, p->q + from * d, 1, d, keys, d * width, samples, 1);
    }
}

static void through(const Heads *p, int64_t share, int gradient)
{
    const int64_t last = p->N * (share + 1) / p->shares;
    REAL *room = p->rooms + share * p->kept, *keys = room + p->samples * kept_of_sample(p);
    REAL *e = keys + p->samples * p->d * p->width, *sums = p->sums + share * p->weights, total = 0;
    if (gradient) memset(sums, 0, sizeof(REAL) * p->weights);
    for (int64_t from = p->N * share / p->shares; from < last; from += p->samples) {
        const int64_t samples = least(p->samples, last - from);
        to_errors(p, from, samples, e, keys, room);
        for (int64_t n = 0; n < samples; n++) total += e[n] * e[n];
        if (gradient) from_errors(p, from, samples, e, keys, room, sums);
    }
    p->totals[share] = total;
}

static void step_share(void *problem, int64_t number)
{
    const Heads *p = (Heads *)problem + number / ((Heads *)problem)->shares;
    through(p, number % p->shares, 1);
}

static void value_share(void *problem, int64_t number)
{
    const Heads *p = (Heads *)problem + number / ((Heads *)problem)->shares;
    through(p, number % p->shares, 0);
}

static void connect(XLA_FFI_CallFrame *frame, Heads *p, int64_t b, int gradient)
{
    const int64_t N = p->N, d = p->d, m = p->m;
    const int64_t sizes[] = {N * p->T * d, N * d, N, m * d * d, m * d, m, 1};
    const REAL *given[7];
    for (int k = 0; k < 7; k++) given[k] = (REAL *)argument(frame, k)->data + b * sizes[k];
    p->X = given[0], p->q = given[1], p->y = given[2], p->W = given[3], p->U = given[4];
    p->c = given[5], p->scale = *given[6];
    p->logistic = ((int32_t *)argument(frame, 7)->data)[b];
    p->value = result(frame, 0) + b;
    if (gradient) {
        p->dW = result(frame, 1) + b * m * d * d;
        p->dU = result(frame, 2) + b * m * d;
        p->dc = result(frame, 3) + b * m;
    }
    p->laid_out = result(frame, gradient ? 4 : 1) + b * room_of(p);
    p->sums = p->laid_out + p->weights;
    p->rooms = p->sums + p->shares * p->weights;
    p->totals = p->rooms + p->shares * p->kept;
}

static XLA_FFI_Error *run(XLA_FFI_CallFrame *frame, int gradient)
{
    if (only_asked(frame)) return NULL;
    const int64_t batch = batch_of(frame, 0, 3), axes = argument(frame, 0)->rank - 3;
    const Heads plan = planned(argument(frame, 0)->dims + axes, argument(frame, 3)->dims[axes]);
    Heads *problems = malloc(batch * sizeof(Heads));
    if (!problems) return failure(frame, "no memory for the heads");
    for (int64_t b = 0; b < batch; b++) {
        problems[b] = plan;
        connect(frame, problems + b, b, gradient);
        lay_out(problems + b);
    }
    XLA_FFI_Error *error =
        share_out(frame, gradient ? step_share : value_share, problems, batch * plan.shares);
    for (int64_t b = 0; !error && b < batch; b++) {
        *problems[b].value = 0;
        for (int64_t s = 0; s < plan.shares; s++) *problems[b].value += problems[b].totals[s];
        if (gradient) take_out(problems + b);
    }
    free(problems);
    return error;
}

XLA_FFI_Error *heads(XLA_FFI_CallFrame *frame) { return run(frame, 1); }
XLA_FFI_Error *heads_value(XLA_FFI_CallFrame *frame) { return run(frame, 0); }
