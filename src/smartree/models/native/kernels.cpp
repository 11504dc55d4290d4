// Packed passes of LLaMA-like decoders in bfloat16 on CPUs with AVX-512 BF16: one call runs all layers.
//
// Two rules hold everywhere. A row's numbers depend on that row and on what it sees, never on how many other rows share
// the pass or in which slot they lie: every sum has one fixed order. So a token verified in a tree gets, bit for bit, the
// logits it would get alone, and speculation changes no output, not even in bfloat16. And sums are kept in float32; values
// are rounded to bfloat16 where they enter a product.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

using bf16 = uint16_t;

extern "C" {

// A linear layer. `weight` is bfloat16 packed as [ceil(outputs / 32)][inputs / 2][32][2], zeros behind the last output, or
// where there is a `scale` bytes packed as [ceil(outputs / 32)][inputs / 4][32][4]: see `kernels_int8.h`.
struct Matrix {
  const void* weight;
  const float* bias;      // or null
  const float* scale;     // [ceil(outputs / 32)][32] what one step of a byte is worth; null of bfloat16
  const int32_t* offset;  // the same: -128 times the sum of an output's bytes, as codes of inputs begin at 128; or null
  int32_t inputs, outputs;
  int32_t streamed;  // of a model too large for the processor's caches: its weights should not push out what is in them
};

struct Layer {
  Matrix q, k, v, o, gate, up, down;  // q, k and v all with bytes or none of them; gate and up too
  const float *norm_in, *norm_post;
  const float *norm_q, *norm_k;  // per head, or null
  const float* norm_hidden;      // EAGLE's first layer: of the features; null elsewhere
  float eps, scale;
  int32_t window;                // positions a row looks back, itself included; 0 sees all
  int32_t normed_residual;       // EAGLE's first layer: the residual stream continues with the normed features
};

struct Model {
  int32_t hidden, heads, kv_heads, head_dim, layers;
  const Layer* layer;
  const float* norm_out;
  float eps;
  Matrix head;
  const float *cosines, *sines;  // [positions][head_dim] of the rotations
  int64_t positions;
};

// Keys [slots][kv_heads][head_dim][rows], values [slots][kv_heads][rows][head_dim], one pair of arrays a layer.
struct Cache {
  bf16* const* keys;
  bf16* const* values;
  int64_t rows;
};

// Requests and the rows that each of them feeds. Row j of a request with `cached` rows is written to place cached + j of
// its slot. It sees the first `base` rows of the slot and, of those behind, all up to itself (`causal`), or itself, its
// parent, that one's parent and so on (`above`), or what a mask says.
struct Group {
  int32_t requests, causal;
  int32_t width, columns;     // most rows of a request; most places behind `base`
  const int64_t *slot, *base, *cached, *size;  // [requests]
  const int64_t* depth;       // [rows] position relative to `base`
  const int64_t* above;       // [requests][columns] a place's parent, both relative to `base`; negative for none; or null
  const uint8_t* mask;        // [requests][width][columns] or null
};

// Rows of a table: row i of what is meant is rows[i] of the table, or i if `rows` is null.
struct Gathered {
  const bf16* table;
  const int64_t* rows;
  int64_t size;  // rows of the table; what lies beyond is row 0
};

}  // extern "C"

namespace {

constexpr int kColumns = 32;   // outputs of a weight block
constexpr int kTileRows = 12;  // rows whose sums fit into registers beside two weight vectors
constexpr int kFetched = 64;    // times 128 bytes of weights that are fetched ahead of their use
constexpr int kLongBlock = 3072;  // times 128 bytes of a block of which two are too many for a core's cache
constexpr int kTogether = 32;   // rows whose keys one thread stores
constexpr int kQueries = 24;   // queries of an attention item
constexpr int kEight = 8;
constexpr int kAhead = 16;      // rows of values that are fetched ahead of their use

inline float widen(bf16 value) {
  uint32_t bits = uint32_t(value) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline __m512 widen(__m256i values) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16)); }

inline __m256i narrow(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }

inline int32_t pair_at(const bf16* values) {
  int32_t pair;
  std::memcpy(&pair, values, 4);
  return pair;
}

inline __m512 dot(__m512 sum, __m512i left, __m512i right) {
  return _mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)right);
}

// Memory that a call works in, kept between calls; one session is used by one thread at a time.
struct Arena {
  std::vector<void*> blocks;
  std::vector<size_t> sizes;
  template <class T>
  T* get(size_t place, size_t count) {
    const size_t bytes = (count * sizeof(T) + 4159) / 64 * 64;
    if (blocks.size() <= place) blocks.resize(place + 1, nullptr), sizes.resize(place + 1, 0);
    if (sizes[place] < bytes) {
      std::free(blocks[place]);
      blocks[place] = std::aligned_alloc(64, bytes);
      sizes[place] = bytes;
      std::memset(blocks[place], 0, bytes);
    }
    return static_cast<T*>(blocks[place]);
  }
  ~Arena() {
    for (void* block : blocks) std::free(block);
  }
};

// ---- products ------------------------------------------------------------------------------------------------------

// Where the weights lie that a tile fetches from memory while it works: some lines of 64 bytes with every 128 bytes of its
// own, from `from` on, and after `turn` times those from `then` on.
struct Ahead {
  const char* from;
  int turn;
  const char* then;
};

// Into which cache weights are fetched: the nearest one, past all of them for what is used once, or the core's own large one.
enum Cached { kNear, kOnce, kCore };

template <Cached where>
inline void prefetch(const char* from) {
  if (where == kNear) _mm_prefetch(from, _MM_HINT_T0);
  if (where == kOnce) _mm_prefetch(from, _MM_HINT_NTA);
  if (where == kCore) _mm_prefetch(from, _MM_HINT_T1);
}

// Calls `use` with the tiles of some rows: the first row, how many, and what the tile fetches from memory meanwhile.
//
// One tile waits for the weights of its block, and fetches them a little ahead of their use. Where there are several, all
// but the first find the block in the cache and would leave memory idle; so the first two fetch the next block, a half each,
// if two blocks fit into a core's cache.
template <class Use>
inline void in_tiles(const char* weight, int steps, int rows, const char* next, Use use) {
  const int tiles = (rows + kTileRows - 1) / kTileRows, soon = std::min(kFetched, steps);
  const Ahead own{weight + 128 * soon, steps - soon, next};
  for (int t = 0, row = 0; t < tiles; t++) {
    const int end = int(int64_t(rows) * (t + 1) / tiles);
    if (tiles == 1 || steps > kLongBlock)
      use(row, end - row, 2, own);
    else
      use(row, end - row, t < 2 ? 1 : 0, Ahead{next + t * int64_t(64) * steps, steps, next});
    row = end;
  }
}

#include "kernels_int8.h"

template <int R, int lines, Cached where>
inline void tile(const bf16* x, int64_t stride, const bf16* weight, int inputs, const Ahead& ahead, float* out) {
  __m512 sum[R][2];
  for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  const char* fetched = ahead.from;
  int k = 0;
  for (int end : {2 * ahead.turn, inputs}) {
    for (; k < end; k += 2, weight += 2 * kColumns) {
      const __m512i left = _mm512_loadu_si512(weight), right = _mm512_loadu_si512(weight + kColumns);
      for (int line = 0; line < lines; line++) prefetch<where>(fetched + 64 * line);
      fetched += 64 * lines;
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        const __m512i value = _mm512_set1_epi32(pair_at(x + r * stride + k));
        sum[r][0] = dot(sum[r][0], left, value);
        sum[r][1] = dot(sum[r][1], right, value);
      }
    }
    fetched = ahead.then;
  }
  for (int r = 0; r < R; r++) {
    _mm512_storeu_ps(out + r * kColumns, sum[r][0]);
    _mm512_storeu_ps(out + r * kColumns + 16, sum[r][1]);
  }
}

template <int lines, Cached where>
void tile_of(int count, const bf16* x, int inputs, const bf16* weight, const Ahead& ahead, float* out) {
  switch (count) {
#define TILE(n) case n: tile<n, lines, where>(x, inputs, weight, inputs, ahead, out); break;
    TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#undef TILE
  }
}

void block_tiles(const Matrix& matrix, const bf16* weight, const bf16* x, int rows, const char* next, float* out) {
  const int inputs = matrix.inputs;
  const auto use = [&](int first, int count, int lines, const Ahead& ahead) {
    const bf16* from = x + int64_t(first) * inputs;
    float* to = out + int64_t(first) * kColumns;
    if (lines == 0)
      tile_of<0, kCore>(count, from, inputs, weight, ahead, to);
    else if (lines == 1)
      tile_of<1, kCore>(count, from, inputs, weight, ahead, to);
    else if (matrix.streamed && rows <= kTileRows)  // more rows read a block again
      tile_of<2, kOnce>(count, from, inputs, weight, ahead, to);
    else
      tile_of<2, kNear>(count, from, inputs, weight, ahead, to);
  };
  in_tiles(reinterpret_cast<const char*>(weight), inputs / 2, rows, next, use);
}

inline const void* block_of(const Matrix& matrix, int block) {
  return static_cast<const char*>(matrix.weight) + int64_t(block) * kColumns * matrix.inputs * (has_bytes(matrix) ? 1 : 2);
}

// out [rows][32] = x [rows][inputs] times one block of the matrix, bias included. `next` is the block that comes after it.
void block_product(const Matrix& matrix, int block, const Input& x, int rows, float* out, const void* next = nullptr) {
  if (next == nullptr) next = block_of(matrix, block + 1);
  const void* weight = block_of(matrix, block);
  if (has_bytes(matrix))
    byte_product(matrix, block, x, rows, static_cast<const char*>(next), out);
  else
    block_tiles(matrix, static_cast<const bf16*>(weight), x.values, rows, static_cast<const char*>(next), out);
  if (matrix.bias != nullptr) {
    const int begin = block * kColumns, width = std::min(kColumns, matrix.outputs - begin);
    for (int row = 0; row < rows; row++)
      for (int c = 0; c < width; c++) out[int64_t(row) * kColumns + c] += matrix.bias[begin + c];
  }
}

inline int blocks_of(const Matrix& matrix) { return (matrix.outputs + kColumns - 1) / kColumns; }

struct Share {
  int block, first, rows;
};

// Calls `use` with this thread's shares of blocks x rows: blocks alone if they divide well, else also parts of the rows.
template <class Use>
inline void shares(int blocks, int rows, int thread, int threads, Use use) {
  int parts = 1;
  if (blocks % threads != 0 && rows >= 4 * kTileRows) parts = std::min(threads, rows / (2 * kTileRows));
  const int64_t all = int64_t(blocks) * parts;
  for (int64_t i = all * thread / threads; i < all * (thread + 1) / threads; i++) {
    const int part = int(i % parts), first = int(int64_t(rows) * part / parts);
    use(Share{int(i / parts), first, int(int64_t(rows) * (part + 1) / parts) - first});
  }
}

// ---- rows ----------------------------------------------------------------------------------------------------------

// out = x / rms(x) * weight, of `size` values; in bfloat16 as it enters a product.
void normalise(const float* x, const float* weight, float eps, int size, bf16* out) {
  __m512 squares = _mm512_setzero_ps();
  for (int i = 0; i < size; i += 16) {
    const __m512 value = _mm512_loadu_ps(x + i);
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  const __m512 factor = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / size + eps));
  for (int i = 0; i < size; i += 16) {
    const __m512 value = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor), _mm512_loadu_ps(weight + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), narrow(value));
  }
}

inline void widen_row(const bf16* from, int size, float* to) {
  for (int i = 0; i < size; i += 16)
    _mm512_storeu_ps(to + i, widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
}

inline void narrow_row(const float* from, int size, bf16* to) {
  for (int i = 0; i < size; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), narrow(_mm512_loadu_ps(from + i)));
}

// Normalises (if asked) and rotates one head; the two halves of a head turn together, as in Hugging Face's LLaMA.
void rotate(float* head, const float* weight, float eps, const float* cosines, const float* sines, int size) {
  if (weight != nullptr) {
    float squares = 0;
    for (int i = 0; i < size; i++) squares += head[i] * head[i];
    const float factor = 1.0f / std::sqrt(squares / size + eps);
    for (int i = 0; i < size; i++) head[i] *= factor * weight[i];
  }
  const int half = size / 2;
  for (int i = 0; i < half; i++) {
    const float left = head[i], right = head[i + half];
    head[i] = left * cosines[i] - right * sines[i];
    head[i + half] = right * cosines[i + half] + left * sines[i + half];
  }
}

inline __m512 exponential(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-100.0f));
  const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
  rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
  __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
  for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
  sum = _mm512_fmadd_ps(sum, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(sum, whole);
}

// silu(gate) * up
inline __m512 gated(__m512 gate, __m512 up) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 below = _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate)));
  return _mm512_mul_ps(_mm512_div_ps(gate, below), up);
}

// ---- noise ----------------------------------------------------------------------------------------------------------

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15, kMix1 = 0xBF58476D1CE4E5B9, kMix2 = 0x94D049BB133111EB;
constexpr float kRough = 0.02f;  // more than twice what rough noise can be off

// The 52 random bits of an entry, inverted: large noise belongs to small numbers.
inline uint64_t number_at(uint64_t key, int entry) {
  uint64_t z = key + (uint64_t(entry) + 1) * kGolden;
  z = (z ^ (z >> 30)) * kMix1;
  z = (z ^ (z >> 27)) * kMix2;
  return ~(z ^ (z >> 31)) >> 12;
}

inline __m256 numbers_at(uint64_t key, int entry) {
  const __m512i lanes = _mm512_setr_epi64(1, 2, 3, 4, 5, 6, 7, 8);
  const __m512i places = _mm512_add_epi64(_mm512_set1_epi64(entry), lanes);
  __m512i z = _mm512_add_epi64(_mm512_set1_epi64(int64_t(key)), _mm512_mullo_epi64(places, _mm512_set1_epi64(int64_t(kGolden))));
  z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)), _mm512_set1_epi64(int64_t(kMix1)));
  z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)), _mm512_set1_epi64(int64_t(kMix2)));
  z = _mm512_xor_si512(_mm512_xor_si512(z, _mm512_srli_epi64(z, 31)), _mm512_set1_epi64(-1));
  return _mm512_cvtepi64_ps(_mm512_srli_epi64(z, 12));
}

// log(x) to 1e-4, for positive x.
inline __m512 rough_log(__m512 x) {
  const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
  __m512 sum = _mm512_set1_ps(-0.0554593f);
  for (float factor : {0.4405027f, -1.4551948f, 2.8069805f, -1.7367597f}) sum = _mm512_fmadd_ps(sum, m, _mm512_set1_ps(factor));
  return _mm512_fmadd_ps(_mm512_getexp_ps(x), _mm512_set1_ps(0.69314718f), sum);
}

// Gumbel noise -log(-log(1 - v)) of 16 entries to about 3e-3 (the series' error; the logarithms' is smaller).
inline __m512 rough_noise(uint64_t key, int entry) {
  const __m512 numbers = _mm512_insertf32x8(_mm512_castps256_ps512(numbers_at(key, entry)), numbers_at(key, entry + 8), 1);
  const __m512 v = _mm512_mul_ps(_mm512_add_ps(numbers, _mm512_set1_ps(0.5f)), _mm512_set1_ps(0x1p-52f));
  // -log(1 - v): the series where it is good, as 1 - v has no digits of a small v left.
  __m512 series = _mm512_set1_ps(0.25f);
  for (float factor : {0.33333333f, 0.5f, 1.0f}) series = _mm512_fmadd_ps(series, v, _mm512_set1_ps(factor));
  const __m512 left = _mm512_max_ps(_mm512_sub_ps(_mm512_set1_ps(1.0f), v), _mm512_set1_ps(1e-8f));
  const __mmask16 small = _mm512_cmp_ps_mask(v, _mm512_set1_ps(0.3f), _CMP_LT_OQ);
  const __m512 whole = _mm512_sub_ps(_mm512_setzero_ps(), rough_log(left));
  return _mm512_sub_ps(_mm512_setzero_ps(), rough_log(_mm512_mask_mul_ps(whole, small, series, v)));
}

// ---- who sees what --------------------------------------------------------------------------------------------------

// The rows of a pass, request by request. Row i is written to `place[i]` of `slot[i]`; it sees the rows 0 ..
// contiguous[i] - 1 of that slot, then list[list_start[i] .. list_start[i + 1] - 1] in rising order, its own last.
//
// The order in which a row sees things is that of positions. So it does not matter where in the cache its ancestors lie,
// and the sums of attention are the same in a tree as in plain decoding.
struct Rows {
  int count = 0, requests = 0;
  std::vector<int32_t> first{0}, slot, place, contiguous, list_start{0}, list, position;
  std::vector<int32_t> path;

  void add(const Group& group) {
    const int64_t* depth = group.depth;
    for (int request = 0; request < group.requests; request++) {
      const int64_t base = group.base[request], behind = group.cached[request] - base;
      for (int64_t row = 0; row < group.size[request]; row++, count++) {
        slot.push_back(int32_t(group.slot[request]));
        place.push_back(int32_t(base + behind + row));
        position.push_back(int32_t(base + *depth++));
        int32_t reach = int32_t(base);
        if (group.causal) {
          reach += int32_t(behind + row + 1);
        } else {
          find_path(group, request, int(row), int(behind + row));
          size_t start = 0;  // a list costs more than contiguous rows: what follows them without a gap belongs to them
          while (start < path.size() && base + path[start] == reach) reach++, start++;
          for (; start < path.size(); start++) list.push_back(int32_t(base + path[start]));
        }
        contiguous.push_back(reach);
        list_start.push_back(int32_t(list.size()));
      }
      first.push_back(count);
      requests++;
    }
  }

  // Places behind `base` that a row sees, rising: parents lie before their children.
  void find_path(const Group& group, int request, int row, int own) {
    path.clear();
    if (group.above != nullptr) {
      const int64_t* above = group.above + int64_t(request) * group.columns;
      for (int64_t at = own; at >= 0; at = above[at]) path.push_back(int32_t(at));
      std::reverse(path.begin(), path.end());
    } else {
      const uint8_t* mask = group.mask + (int64_t(request) * group.width + row) * group.columns;
      for (int column = 0; column < group.columns; column++)
        if (mask[column]) path.push_back(column);
    }
  }
};

// ---- attention -----------------------------------------------------------------------------------------------------

// What unpacking two vectors of 32 halves leaves in two vectors of 16 floats, back in order.
inline void in_order(__m512 low, __m512 high, __m512* first, __m512* second) {
  const __m512i a = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i b = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  *first = _mm512_permutex2var_ps(low, a, high);
  *second = _mm512_permutex2var_ps(low, b, high);
}

// Scores of Q queries with 32 keys that lie as [dim][rows]; `inside` masks what lies within the cache.
template <int Q>
void score_block(const bf16* const* query, const bf16* keys, int64_t rows, int dim, __mmask32 inside, float* const* out) {
  __m512 sum[Q][2];
  for (int q = 0; q < Q; q++) sum[q][0] = sum[q][1] = _mm512_setzero_ps();
  for (int i = 0; i < dim; i += 2) {
    const __m512i even = _mm512_maskz_loadu_epi16(inside, keys + i * rows);
    const __m512i odd = _mm512_maskz_loadu_epi16(inside, keys + (i + 1) * rows);
    // The processor does not see that the next block's keys lie beside these.
    _mm_prefetch(reinterpret_cast<const char*>(keys + i * rows + kColumns), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(keys + (i + 1) * rows + kColumns), _MM_HINT_T0);
    const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 8
    for (int q = 0; q < Q; q++) {
      const __m512i value = _mm512_set1_epi32(pair_at(query[q] + i));
      sum[q][0] = dot(sum[q][0], low, value);
      sum[q][1] = dot(sum[q][1], high, value);
    }
  }
  for (int q = 0; q < Q; q++) {
    __m512 first, second;
    in_order(sum[q][0], sum[q][1], &first, &second);
    _mm512_storeu_ps(out[q], first);
    _mm512_storeu_ps(out[q] + 16, second);
  }
}

// sum += weights [pairs] times value rows 2p, 2p + 1, for P times 32 dimensions of Q queries.
template <int Q, int P>
void mix_pairs(const bf16* const* weights, const bf16* values, int dim, int pairs, float* const* sums) {
  __m512 sum[Q][2 * P];
  for (int q = 0; q < Q; q++)
    for (int p = 0; p < 2 * P; p++) sum[q][p] = _mm512_loadu_ps(sums[q] + 16 * p);
  for (int i = 0; i < pairs; i++) {
    const bf16* row = values + int64_t(2 * i) * dim;
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
      const __m512i even = _mm512_loadu_si512(row + p * kColumns), odd = _mm512_loadu_si512(row + dim + p * kColumns);
      _mm_prefetch(reinterpret_cast<const char*>(row + kAhead * dim + p * kColumns), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(row + (kAhead + 1) * dim + p * kColumns), _MM_HINT_T0);
      const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 8
      for (int q = 0; q < Q; q++) {
        const __m512i weight = _mm512_set1_epi32(pair_at(weights[q] + 2 * i));
        sum[q][2 * p] = dot(sum[q][2 * p], low, weight);
        sum[q][2 * p + 1] = dot(sum[q][2 * p + 1], high, weight);
      }
    }
  }
  for (int q = 0; q < Q; q++)
    for (int p = 0; p < 2 * P; p++) _mm512_storeu_ps(sums[q] + 16 * p, sum[q][p]);
}

struct Attention {
  const Model& model;
  const Layer& layer;
  const Cache& cache;
  const Rows& rows;
  const bf16* queries;  // [count][heads * head_dim]
  bf16* output;         // the same

  // Rows first .. last - 1 of a request with the query heads of key/value head `head`.
  void run(int index, int head, int first, int last, float* scores, bf16* weights, float* sums) const {
    const int dim = model.head_dim, group = model.heads / model.kv_heads, count = (last - first) * group;
    const int64_t width = cache.rows + 2 * kColumns, all = int64_t(model.heads) * dim;
    const int64_t slot = int64_t(rows.slot[first]) * model.kv_heads + head;
    const bf16* keys = cache.keys[index] + slot * dim * cache.rows;
    const bf16* values = cache.values[index] + slot * dim * cache.rows;
    const bf16 *query[kQueries], *weight[kQueries];
    float *score[kQueries], *sum[kQueries], inverse[kQueries];
    for (int q = 0; q < count; q++) {
      query[q] = queries + (first + q / group) * all + (head * group + q % group) * dim;
      score[q] = scores + q * width;
      weight[q] = weights + q * width;
      sum[q] = sums + q * dim;
    }
    int reach = 0, low = INT32_MAX;
    for (int row = first; row < last; row++) {
      const int begin = rows.list_start[row], end = rows.list_start[row + 1];
      reach = std::max(reach, end > begin ? rows.list[end - 1] + 1 : rows.contiguous[row]);
      low = std::min(low, start_of(row));
    }
    for (int key = low / kColumns * kColumns; key < reach; key += kColumns) {
      const int64_t left = cache.rows - key;
      const __mmask32 inside = left >= kColumns ? 0xffffffffu : (1u << left) - 1;
      for (int q = 0; q < count; q += kEight) {
        float* out[kEight];
        for (int i = 0; i < std::min(kEight, count - q); i++) out[i] = score[q + i] + key;
        switch (std::min(kEight, count - q)) {
#define SCORE(n) case n: score_block<n>(query + q, keys + key, cache.rows, dim, inside, out); break;
          SCORE(1) SCORE(2) SCORE(3) SCORE(4) SCORE(5) SCORE(6) SCORE(7) SCORE(8)
#undef SCORE
        }
      }
    }
    for (int q = 0; q < count; q++) {
      const int row = first + q / group;
      int total = rows.contiguous[row];
      for (int i = rows.list_start[row]; i < rows.list_start[row + 1]; i++) score[q][total++] = score[q][rows.list[i]];
      inverse[q] = soften(score[q] + start_of(row), total - start_of(row), const_cast<bf16*>(weight[q]));
    }
    std::memset(sums, 0, sizeof(float) * count * dim);
    int shared = INT32_MAX;  // pairs of value rows that all queries see
    for (int row = first; row < last; row++) shared = start_of(row) > 0 ? 0 : std::min(shared, rows.contiguous[row] / 2);
    // As many dimensions at a time as registers hold: value rows lie one after the other, and are read in that order.
    const int wide = dim % (2 * kColumns) == 0 ? 2 : 1, most = wide == 2 ? 6 : kEight;
    for (int part = 0; part < dim; part += wide * kColumns)
      for (int q = 0; q < count; q += most) {
        float* into[kEight];
        for (int i = 0; i < std::min(most, count - q); i++) into[i] = sum[q + i] + part;
        switch (10 * wide + std::min(most, count - q)) {
#define MIX(p, n) case 10 * p + n: mix_pairs<n, p>(weight + q, values + part, dim, shared, into); break;
          MIX(1, 1) MIX(1, 2) MIX(1, 3) MIX(1, 4) MIX(1, 5) MIX(1, 6) MIX(1, 7) MIX(1, 8)
          MIX(2, 1) MIX(2, 2) MIX(2, 3) MIX(2, 4) MIX(2, 5) MIX(2, 6)
#undef MIX
        }
      }
    for (int q = 0; q < count; q++) {
      const int row = first + q / group;
      mix_rest(row, weight[q], values, 2 * shared, sum[q]);
      store(sum[q], inverse[q], output + row * all + (head * group + q % group) * dim);
    }
  }

  int start_of(int row) const {
    const int total = rows.contiguous[row] + rows.list_start[row + 1] - rows.list_start[row];
    return layer.window > 0 ? std::max(0, total - layer.window) : 0;
  }

  // Weights exp(scale * (score - best)) in bfloat16, one zero behind; returns 1 / their sum.
  float soften(const float* score, int count, bf16* weight) const {
    __m512 best = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < count; i += 16) {
      const __mmask16 inside = count - i >= 16 ? 0xffff : (1u << (count - i)) - 1;
      best = _mm512_mask_max_ps(best, inside, best, _mm512_maskz_loadu_ps(inside, score + i));
    }
    const __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(best)), scale = _mm512_set1_ps(layer.scale);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < count; i += 16) {
      const __mmask16 inside = count - i >= 16 ? 0xffff : (1u << (count - i)) - 1;
      const __m512 shifted = _mm512_mul_ps(scale, _mm512_sub_ps(_mm512_maskz_loadu_ps(inside, score + i), most));
      const __m512 value = _mm512_maskz_mov_ps(inside, exponential(shifted));
      sum = _mm512_add_ps(sum, value);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weight + i), narrow(value));
    }
    weight[count] = 0;
    return 1.0f / _mm512_reduce_add_ps(sum);
  }

  // The value rows that one row does not share with the others: the end of its contiguous ones, then its list.
  void mix_rest(int row, const bf16* weight, const bf16* values, int from, float* sum) const {
    const int dim = model.head_dim, start = start_of(row), contiguous = rows.contiguous[row];
    const int32_t* list = rows.list.data() + rows.list_start[row];
    const int total = contiguous + rows.list_start[row + 1] - rows.list_start[row];
    auto at = [&](int j) { return values + int64_t(j < contiguous ? j : list[j - contiguous]) * dim; };
    for (int j = std::max(from, start); j < total; j += 2) {
      const bf16 *left = at(j), *right = j + 1 < total ? at(j + 1) : nullptr;
      const __m512i factor = _mm512_set1_epi32(pair_at(weight + j - start));
      for (int part = 0; part < dim; part += kColumns) {
        const __m512i even = _mm512_loadu_si512(left + part);
        const __m512i odd = right != nullptr ? _mm512_loadu_si512(right + part) : _mm512_setzero_si512();
        const __m512 low = dot(_mm512_loadu_ps(sum + part), _mm512_unpacklo_epi16(even, odd), factor);
        const __m512 high = dot(_mm512_loadu_ps(sum + part + 16), _mm512_unpackhi_epi16(even, odd), factor);
        _mm512_storeu_ps(sum + part, low);
        _mm512_storeu_ps(sum + part + 16, high);
      }
    }
  }

  void store(const float* sum, float inverse, bf16* out) const {
    const __m512 factor = _mm512_set1_ps(inverse);
    for (int part = 0; part < model.head_dim; part += kColumns) {
      __m512 first, second;
      in_order(_mm512_loadu_ps(sum + part), _mm512_loadu_ps(sum + part + 16), &first, &second);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + part), narrow(_mm512_mul_ps(first, factor)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + part + 16), narrow(_mm512_mul_ps(second, factor)));
    }
  }
};

struct Item {
  int head, first, last;
};

// Attention in pieces: a key/value head of a request, and as many rows as an item takes.
std::vector<Item> items_of(const Model& model, const Rows& rows) {
  const int most = std::max(1, kQueries / (model.heads / model.kv_heads));
  std::vector<Item> items;
  for (int request = 0; request < rows.requests; request++)
    for (int first = rows.first[request]; first < rows.first[request + 1]; first += most)
      for (int head = 0; head < model.kv_heads; head++)
        items.push_back({head, first, std::min(first + most, rows.first[request + 1])});
  return items;
}

// True if any matrix has bytes.
bool holds_bytes(const Model& model) {
  bool found = has_bytes(model.head);
  for (int i = 0; i < model.layers; i++) {
    const Layer& layer = model.layer[i];
    for (const Matrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      found = found || has_bytes(*matrix);
  }
  return found;
}

// ---- the pass ------------------------------------------------------------------------------------------------------

// The largest logit so far, and the first entry that has it.
struct Best {
  float value;
  int32_t entry;
  void take(__m512 values, int first) {
    const float most = _mm512_reduce_max_ps(values);
    if (most < value) return;
    const int place = first + __builtin_ctz(_mm512_cmp_ps_mask(values, _mm512_set1_ps(most), _CMP_EQ_OQ) | 0x10000);
    if (most > value || place < entry) value = most, entry = place;
  }
  bool operator<(const Best& other) const {
    return value != other.value ? value < other.value : entry > other.entry;
  }
};

inline const bf16* row_of(const Gathered& from, int64_t row, int64_t width) {
  if (from.rows == nullptr) return from.table + row * width;
  return from.table + (from.rows[row] < from.size ? from.rows[row] : 0) * width;
}

struct Pass {
  const Model& model;
  const Cache& cache;
  const Rows& rows;
  const Gathered& embeddings;  // EAGLE: [count][hidden] of the tokens
  int threads;
  const std::vector<Item>& items;
  float *stream, *q, *k, *v;    // residual [count][hidden]; projections
  bf16 *normed, *queries, *mixed, *inner;
  float *tiles, *scores, *sums;  // a part for each thread
  bf16* weights;
  int64_t tile_size, score_size;
  Codes codes;  // of what enters a product next, if its matrix has bytes

  Pass of(int team) const {
    Pass pass = *this;
    pass.threads = team;
    return pass;
  }

  // `matrix` is what reads the normed rows.
  void norms(const Layer& layer, const float* weight, const Matrix& matrix, int thread) const {
    const int hidden = model.hidden;
    for (int row = thread; row < rows.count; row += threads) {
      float* x = stream + int64_t(row) * hidden;
      if (layer.norm_hidden != nullptr && weight == layer.norm_in) {
        bf16* to = normed + int64_t(row) * 2 * hidden;
        float* wide = tiles + thread * tile_size;
        widen_row(row_of(embeddings, row, hidden), hidden, wide);
        normalise(wide, weight, layer.eps, hidden, to);
        normalise(x, layer.norm_hidden, layer.eps, hidden, to + hidden);
        if (layer.normed_residual) widen_row(to + hidden, hidden, x);
      } else {
        normalise(x, weight, layer.eps, hidden, normed + int64_t(row) * hidden);
      }
    }
    // A thread rounds the rows that it wrote.
    if (has_bytes(matrix)) round_rows(normed, matrix.inputs, rows.count, codes, thread, threads);
  }

  // What enters the product with a matrix, once all threads have written it.
  Input input_of(const Matrix& matrix, const bf16* x, int thread) const {
    if (has_bytes(matrix)) {
      round_rows(x, matrix.inputs, rows.count, codes, thread, threads);
#pragma omp barrier
    }
    return codes.with(x, matrix.inputs);
  }

  void projections(const Layer& layer, int thread) const {
    const Matrix* matrices[3] = {&layer.q, &layer.k, &layer.v};
    float* outputs[3] = {q, k, v};
    const int blocks[3] = {blocks_of(layer.q), blocks_of(layer.k), blocks_of(layer.v)};
    float* out = tiles + thread * tile_size;
    shares(blocks[0] + blocks[1] + blocks[2], rows.count, thread, threads, [&](Share share) {
      int which = 0;
      while (share.block >= blocks[which]) share.block -= blocks[which++];
      const Matrix& matrix = *matrices[which];
      block_product(matrix, share.block, codes.with(normed, matrix.inputs).from(share.first), share.rows, out);
      for (int row = 0; row < share.rows; row++)
        std::memcpy(outputs[which] + int64_t(share.first + row) * matrix.outputs + share.block * kColumns,
                    out + row * kColumns, sizeof(float) * kColumns);
    });
  }

  // Rotates queries and keys, and stores keys and values in the cache. Keys of neighbouring rows lie side by side in one
  // line of the processor's cache: one thread writes them, as two would take the line from each other with every row.
  void seat(const Layer& layer, int index, int thread) const {
    const int heads = model.heads + 2 * model.kv_heads, parts = (rows.count + kTogether - 1) / kTogether;
    for (int unit = thread; unit < heads * parts; unit += threads)
      for (int row = unit / heads * kTogether; row < std::min(rows.count, (unit / heads + 1) * kTogether); row++)
        seat_head(layer, index, row, unit % heads);
  }

  void seat_head(const Layer& layer, int index, int row, int head) const {
    const int dim = model.head_dim;
    const int64_t turn = int64_t(rows.position[row]) * dim;
    const float *cosines = model.cosines + turn, *sines = model.sines + turn;
    if (head < model.heads) {
      float* query = q + (int64_t(row) * model.heads + head) * dim;
      rotate(query, layer.norm_q, layer.eps, cosines, sines, dim);
      narrow_row(query, dim, queries + (int64_t(row) * model.heads + head) * dim);
      return;
    }
    const int own = (head - model.heads) % model.kv_heads;
    const int64_t slot = (int64_t(rows.slot[row]) * model.kv_heads + own) * dim * cache.rows;
    if (head < model.heads + model.kv_heads) {
      float* key = k + (int64_t(row) * model.kv_heads + own) * dim;
      rotate(key, layer.norm_k, layer.eps, cosines, sines, dim);
      bf16 narrowed[512];
      narrow_row(key, dim, narrowed);
      bf16* to = cache.keys[index] + slot + rows.place[row];
      for (int i = 0; i < dim; i++) to[int64_t(i) * cache.rows] = narrowed[i];
    } else {
      const float* value = v + (int64_t(row) * model.kv_heads + own) * dim;
      narrow_row(value, dim, cache.values[index] + slot + int64_t(rows.place[row]) * dim);
    }
  }

  void attend(const Layer& layer, int index, int thread) const {
    const Attention attention{model, layer, cache, rows, queries, mixed};
    float *score = scores + thread * score_size, *sum = sums + thread * kQueries * model.head_dim;
    bf16* weight = weights + thread * score_size;
#pragma omp for schedule(dynamic, 1)
    for (size_t i = 0; i < items.size(); i++)
      attention.run(index, items[i].head, items[i].first, items[i].last, score, weight, sum);
  }

  // stream += x times the matrix
  void add_product(const Matrix& matrix, const bf16* x, int thread) const {
    float* out = tiles + thread * tile_size;
    const Input input = input_of(matrix, x, thread);
    shares(blocks_of(matrix), rows.count, thread, threads, [&](Share share) {
      block_product(matrix, share.block, input.from(share.first), share.rows, out);
      for (int row = 0; row < share.rows; row++) {
        float* to = stream + int64_t(share.first + row) * matrix.outputs + share.block * kColumns;
        for (int c = 0; c < kColumns; c += 16)
          _mm512_storeu_ps(to + c, _mm512_add_ps(_mm512_loadu_ps(to + c), _mm512_loadu_ps(out + row * kColumns + c)));
      }
    });
  }

  void gates(const Layer& layer, int thread) const {
    float *gate = tiles + thread * tile_size, *up = gate + int64_t(rows.count) * kColumns;
    shares(blocks_of(layer.gate), rows.count, thread, threads, [&](Share share) {
      const Input x = codes.with(normed, model.hidden).from(share.first);
      block_product(layer.gate, share.block, x, share.rows, gate, block_of(layer.up, share.block));
      block_product(layer.up, share.block, x, share.rows, up, block_of(layer.gate, share.block + 1));
      for (int row = 0; row < share.rows; row++) {
        bf16* to = inner + int64_t(share.first + row) * layer.gate.outputs + share.block * kColumns;
        for (int c = 0; c < kColumns; c += 16) {
          const int64_t at = row * kColumns + c;
          const __m512 value = gated(_mm512_loadu_ps(gate + at), _mm512_loadu_ps(up + at));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c), narrow(value));
        }
      }
    });
  }

  // Logits of normed rows, stored if there is a place for them, and the best of those that this thread computed.
  void logits(const bf16* rows_in, int kept, bf16* to, Best* best, int thread) const {
    float* out = tiles + thread * tile_size;
    const int outputs = model.head.outputs;
    shares(blocks_of(model.head), kept, thread, threads, [&](Share share) {
      block_product(model.head, share.block, codes.with(rows_in, model.hidden).from(share.first), share.rows, out);
      const int begin = share.block * kColumns, width = std::min(kColumns, outputs - begin);
      for (int row = 0; row < share.rows; row++)
        for (int c = 0; c < width; c += 16) {
          const __mmask16 inside = width - c >= 16 ? 0xffff : (1u << (width - c)) - 1;
          const __m256i narrowed = narrow(_mm512_loadu_ps(out + row * kColumns + c));
          if (to != nullptr)
            _mm256_mask_storeu_epi16(to + int64_t(share.first + row) * outputs + begin + c, inside, narrowed);
          best[share.first + row].take(_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), inside, widen(narrowed)), begin + c);
        }
    });
  }

  void layer(int index, int thread) const {
    const Layer& layer = model.layer[index];
    norms(layer, layer.norm_in, layer.q, thread);
#pragma omp barrier
    projections(layer, thread);
#pragma omp barrier
    seat(layer, index, thread);
#pragma omp barrier
    attend(layer, index, thread);
    add_product(layer.o, mixed, thread);
#pragma omp barrier
    norms(layer, layer.norm_post, layer.gate, thread);
#pragma omp barrier
    gates(layer, thread);
#pragma omp barrier
    add_product(layer.down, inner, thread);
#pragma omp barrier
  }
};

}  // namespace

extern "C" {

void* smartree_new_session() { return new Arena; }

void smartree_free_session(void* session) { delete static_cast<Arena*>(session); }

// Whether matrices may have bytes.
int32_t smartree_takes_int8() {
#ifdef __AVX512VNNI__
  return 1;
#else
  return 0;
#endif
}

// Runs all layers.
//   input: [rows][hidden] what enters the first layer; embeddings: for EAGLE heads
//   taps, tapped: layers whose entering state is wanted (the number of layers: what leaves the last one); tapped is
//     [rows][taps * hidden], or null
//   states: [rows][hidden] what leaves the last layer, or null
//   keep: [kept] rows of which `normed_out` [kept][hidden] and `logits` [kept][outputs] are wanted; both may be null, and
//     a null `keep` stands for all rows
//   best: [kept] the first of each row's largest logits; if null, no logits are computed
// Returns 0, or 1 if a position lies beyond the tables of rotations.
int32_t smartree_pass(void* session, const Model* model, const Cache* cache, const Group* groups, int32_t group_count,
                      const Gathered* input, const Gathered* embeddings, const int32_t* taps, int32_t tap_count,
                      bf16* tapped, bf16* states, const int64_t* keep, int32_t kept, bf16* normed_out, bf16* logits,
                      int64_t* best, int32_t threads) {
  Rows packed;
  for (int32_t group = 0; group < group_count; group++) packed.add(groups[group]);
  const Rows* rows = &packed;
  for (int32_t position : packed.position)
    if (position < 0 || position >= model->positions) return 1;
  Arena& arena = *static_cast<Arena*>(session);
  const Layer& one = model->layer[0];
  const int64_t count = rows->count, hidden = model->hidden, dim = model->head_dim;
  const int64_t most = std::max<int64_t>(count, kept);
  const std::vector<Item> items = items_of(*model, *rows);
  const int64_t tile_size = 2 * std::max<int64_t>(most * kColumns, hidden), score_size = kQueries * (cache->rows + 2 * kColumns);
  Pass all{*model, *cache, *rows, *embeddings, threads, items};
  all.tile_size = tile_size, all.score_size = score_size;
  all.stream = arena.get<float>(0, count * hidden);
  all.q = arena.get<float>(1, count * model->heads * dim);
  all.k = arena.get<float>(2, count * model->kv_heads * dim);
  all.v = arena.get<float>(3, count * model->kv_heads * dim);
  all.normed = arena.get<bf16>(4, std::max(count * 2, int64_t(kept)) * hidden);
  all.queries = arena.get<bf16>(5, count * model->heads * dim);
  all.mixed = arena.get<bf16>(6, count * model->heads * dim);
  all.inner = arena.get<bf16>(7, count * one.gate.outputs);
  all.tiles = arena.get<float>(8, threads * tile_size);
  all.scores = arena.get<float>(9, threads * score_size);
  all.weights = arena.get<bf16>(10, threads * score_size);
  all.sums = arena.get<float>(11, threads * kQueries * dim);
  Best* bests = arena.get<Best>(12, int64_t(threads) * kept);
  if (holds_bytes(*model)) {
    const int64_t widest = std::max<int64_t>({2 * hidden, model->heads * dim, one.gate.outputs});
    all.codes = {arena.get<uint8_t>(13, most * widest), arena.get<float>(14, most)};
  }
#pragma omp parallel num_threads(threads)
  {
    // The team may be smaller than asked for (OMP_THREAD_LIMIT, OMP_DYNAMIC): work is shared among those who came.
    const int thread = omp_get_thread_num(), team = omp_get_num_threads();
    const Pass pass = all.of(team);
    for (int64_t row = thread; row < count; row += team)
      widen_row(row_of(*input, row, hidden), int(hidden), pass.stream + row * hidden);
#pragma omp barrier
    for (int index = 0; index <= model->layers; index++) {
      for (int tap = 0; tap < tap_count; tap++)
        if (taps[tap] == index)
          for (int64_t row = thread; row < count; row += team)
            narrow_row(pass.stream + row * hidden, int(hidden), tapped + (row * tap_count + tap) * hidden);
      // No barrier: a thread taps the rows that it norms next, and nobody changes the stream before all have normed.
      if (index < model->layers) pass.layer(index, thread);
    }
    if (states != nullptr)
      for (int64_t row = thread; row < count; row += team)
        narrow_row(pass.stream + row * hidden, int(hidden), states + row * hidden);
    bf16* normed = normed_out != nullptr ? normed_out : pass.normed;
    for (int64_t row = thread; row < kept; row += team)
      normalise(pass.stream + (keep != nullptr ? keep[row] : row) * hidden, model->norm_out, model->eps, int(hidden),
                normed + row * hidden);
    if (best != nullptr && has_bytes(model->head)) round_rows(normed, hidden, kept, pass.codes, thread, team);
#pragma omp barrier
    if (best != nullptr) {
      Best* mine = bests + int64_t(thread) * kept;
      std::fill(mine, mine + kept, Best{-INFINITY, INT32_MAX});
      pass.logits(normed, kept, logits, mine, thread);
#pragma omp barrier
      for (int64_t row = thread; row < kept; row += team) {
        Best most = bests[row];
        for (int other = 1; other < team; other++) most = std::max(most, bests[int64_t(other) * kept + row]);
        best[row] = most.entry == INT32_MAX ? 0 : most.entry;
      }
    }
  }
  return 0;
}

// y [rows][outputs] = x [rows][inputs] times the matrix, bias included, all in bfloat16.
void smartree_linear(void* session, const Matrix* matrix, const Gathered* gathered, int32_t rows, bf16* y, int32_t threads) {
  Arena& arena = *static_cast<Arena*>(session);
  const bf16* x = gathered->table;
  if (gathered->rows != nullptr) {
    const int64_t inputs = matrix->inputs;
    bf16* chosen = arena.get<bf16>(15, rows * inputs);
    for (int64_t row = 0; row < rows; row++)
      std::memcpy(chosen + row * inputs, row_of(*gathered, row, inputs), sizeof(bf16) * inputs);
    x = chosen;
  }
  const int64_t size = int64_t(rows) * kColumns;
  float* tiles = arena.get<float>(8, threads * size);
  Codes codes{};
  if (has_bytes(*matrix)) codes = {arena.get<uint8_t>(13, int64_t(rows) * matrix->inputs), arena.get<float>(14, rows)};
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    float* out = tiles + thread * size;
    if (has_bytes(*matrix)) {
      round_rows(x, matrix->inputs, rows, codes, thread, omp_get_num_threads());
#pragma omp barrier
    }
    const Input input = codes.with(x, matrix->inputs);
    shares(blocks_of(*matrix), rows, thread, omp_get_num_threads(), [&](Share share) {
      block_product(*matrix, share.block, input.from(share.first), share.rows, out);
      const int begin = share.block * kColumns, width = std::min(kColumns, matrix->outputs - begin);
      for (int64_t row = 0; row < share.rows; row++)
        for (int c = 0; c < width; c += 16) {
          const __mmask16 inside = width - c >= 16 ? 0xffff : (1u << (width - c)) - 1;
          _mm256_mask_storeu_epi16(y + (share.first + row) * matrix->outputs + begin + c, inside,
                                   narrow(_mm512_loadu_ps(out + row * kColumns + c)));
        }
    });
  }
}

// Moves cached rows within slots, in all layers: row `from[i]` of `slot[i]` becomes row `to[i]`; a row is never read
// after it was overwritten if the caller's targets rise and lie before their sources.
void smartree_move(const Cache* cache, int32_t layers, int32_t kv_heads, int32_t dim, const int32_t* slot,
                   const int32_t* from, const int32_t* to, int32_t count, int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int unit = 0; unit < layers * kv_heads; unit++) {
    const int layer = unit / kv_heads, head = unit % kv_heads;
    for (int i = 0; i < count; i++) {
      const int64_t start = (int64_t(slot[i]) * kv_heads + head) * dim * cache->rows;
      bf16 *keys = cache->keys[layer] + start, *values = cache->values[layer] + start;
      for (int64_t d = 0; d < dim; d++) keys[d * cache->rows + to[i]] = keys[d * cache->rows + from[i]];
      std::memcpy(values + int64_t(to[i]) * dim, values + int64_t(from[i]) * dim, sizeof(bf16) * dim);
    }
  }
}

// The first of the largest logits of chosen rows.
void smartree_argmax(const bf16* logits, int32_t size, const int64_t* rows, int32_t count, int64_t* best, int32_t threads) {
#pragma omp parallel for num_threads(std::min(threads, count)) schedule(static)
  for (int i = 0; i < count; i++) {
    const bf16* row = logits + rows[i] * size;
    const __m512 least = _mm512_set1_ps(-INFINITY);
    auto at = [&](int j) {
      const __mmask16 inside = size - j >= 16 ? 0xffff : (1u << (size - j)) - 1;
      return _mm512_mask_mov_ps(least, inside, widen(_mm256_maskz_loadu_epi16(inside, row + j)));
    };
    __m512 most[2] = {least, least};
    int j = 0;
    for (; j + 32 <= size; j += 32) {
      most[0] = _mm512_max_ps(most[0], widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + j))));
      most[1] = _mm512_max_ps(most[1], widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + j + 16))));
    }
    for (; j < size; j += 16) most[0] = _mm512_max_ps(most[0], at(j));
    const __m512 wanted = _mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1])));
    best[i] = 0;
    for (j = 0; j < size; j += 16) {
      const __mmask16 found = _mm512_cmp_ps_mask(at(j), wanted, _CMP_EQ_OQ);
      if (found) {
        best[i] = j + __builtin_ctz(found);
        break;
      }
    }
  }
}

// The k most likely entries of every row of logits under its softmax, the first of equal ones first.
//   sharpen: [rows] what a row's logits are multiplied with; tokens, probabilities: [rows][k]
void smartree_likeliest(const bf16* logits, int32_t rows, int32_t size, const float* sharpen, int32_t k,
                        int64_t* tokens, double* probabilities, int32_t threads) {
  constexpr int kPart = 64;
  const int parts = (size + kPart - 1) / kPart, padded = parts * kPart;
#pragma omp parallel for num_threads(std::min(threads, rows)) schedule(static)
  for (int row = 0; row < rows; row++) {
    std::vector<float> memory(padded + parts);
    float* value = memory.data();
    float* top = value + padded;  // the best of each part
    const __m512 factor = _mm512_set1_ps(sharpen[row]), least = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < padded; i += 16) {
      const int left = std::max(0, std::min(16, size - i));
      const __mmask16 inside = (1u << left) - 1;
      const __m512 one = _mm512_mul_ps(factor, widen(_mm256_maskz_loadu_epi16(inside, logits + int64_t(row) * size + i)));
      _mm512_storeu_ps(value + i, _mm512_mask_mov_ps(least, inside, one));
    }
    auto best_of = [&](int part) {
      const float* from = value + part * kPart;
      const __m512 low = _mm512_max_ps(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16));
      return _mm512_reduce_max_ps(_mm512_max_ps(low, _mm512_max_ps(_mm512_loadu_ps(from + 32), _mm512_loadu_ps(from + 48))));
    };
    float most = -INFINITY;
    for (int part = 0; part < parts; part++) most = std::max(most, top[part] = best_of(part));
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < padded; i += 16)
      sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(_mm512_loadu_ps(value + i), _mm512_set1_ps(most))));
    const double total = _mm512_reduce_add_ps(sum);
    for (int i = 0; i < k; i++) {
      const int part = int(std::max_element(top, top + parts) - top);
      float* from = value + part * kPart;
      float* found = std::max_element(from, from + kPart);
      tokens[int64_t(row) * k + i] = found - value;
      probabilities[int64_t(row) * k + i] = std::exp(double(*found) - most) / total;
      *found = -INFINITY;
      top[part] = best_of(part);
    }
  }
}

// Of chosen rows of logits the token with the best logit / temperature + Gumbel noise, the first of equal ones; the noise
// of entry i is that of SplitMix64 at key + (i + 1) * golden ratio (`verify/noise.py`).
void smartree_gumbel(const bf16* logits, int32_t size, const int64_t* rows, const uint64_t* keys, const double* temperatures,
                     int32_t count, int64_t* best, int32_t threads) {
#pragma omp parallel for num_threads(std::min(threads, count)) schedule(static)
  for (int i = 0; i < count; i++) {
    const bf16* row = logits + rows[i] * size;
    std::vector<float> scores((size + 15) / 16 * 16);
    const __m512 factor = _mm512_set1_ps(float(1 / temperatures[i]));
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int j = 0; j < size; j += 16) {
      const __mmask16 inside = size - j >= 16 ? 0xffff : (1u << (size - j)) - 1;
      const __m512 logit = _mm512_mul_ps(factor, widen(_mm256_maskz_loadu_epi16(inside, row + j)));
      const __m512 score = _mm512_mask_add_ps(_mm512_set1_ps(-INFINITY), inside, logit, rough_noise(keys[i], j));
      _mm512_storeu_ps(scores.data() + j, score);
      most = _mm512_max_ps(most, score);
    }
    const float top = _mm512_reduce_max_ps(most), least = top - kRough - 1e-5f * std::fabs(top);
    const __m512 limit = _mm512_set1_ps(least);
    double winner = -INFINITY;
    best[i] = 0;
    for (int j = 0; j < size; j += 16) {
      __mmask16 found = _mm512_cmp_ps_mask(_mm512_loadu_ps(scores.data() + j), limit, _CMP_GE_OQ);
      for (; found; found &= found - 1) {
        const int token = j + __builtin_ctz(found);
        const double less = -(double(number_at(keys[i], token)) + 0.5) * 0x1p-52;
        const double score = double(widen(row[token])) / temperatures[i] - std::log(-std::log1p(less));
        if (score > winner) winner = score, best[i] = token;
      }
    }
  }
}

}  // extern "C"
