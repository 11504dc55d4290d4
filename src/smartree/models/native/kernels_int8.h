// Products with weights of 8 bits, for draft heads: their guesses never change the output, and half the bytes are read.
// Included by `kernels.cpp`, inside its namespace.
//
// A row is rounded to 8 bits too, by its own largest value; sums are whole numbers, so no order of them matters, and a
// row's numbers depend on that row alone here as well.

// Rows as they enter a product: in bfloat16, and where the matrix has bytes also as codes 128 + value / factor.
struct Input {
  const bf16* values;    // [rows][size]
  const uint8_t* codes;  // [rows][size]
  const float* factors;  // [rows]
  int64_t size;
  Input from(int64_t row) const { return {values + row * size, codes + row * size, factors + row, size}; }
};

// Where rows are rounded to 8 bits; as `Input`.
struct Codes {
  uint8_t* codes;
  float* factors;
  Input with(const bf16* values, int64_t size) const { return {values, codes, factors, size}; }
};

inline bool has_bytes(const Matrix& matrix) { return matrix.scale != nullptr; }

#ifdef __AVX512VNNI__

constexpr float kNothing = 1e-30f;  // a row of nothing larger is one of zeros: 127 / largest has to be a number

// `size` values, a multiple of 32, as codes 1 .. 255; returns what one step of a code is worth.
float round_row(const bf16* x, int64_t size, uint8_t* codes) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i most = _mm512_setzero_si512();  // magnitudes of bfloat16 lie in the order of their bits
  for (int64_t i = 0; i < size; i += 32) most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
  const __m512i larger = _mm512_max_epu32(_mm512_slli_epi32(most, 16), _mm512_andnot_si512(_mm512_set1_epi32(0xffff), most));
  const uint32_t bits = _mm512_reduce_max_epu32(larger);
  float largest;
  std::memcpy(&largest, &bits, 4);
  if (largest < kNothing) {
    std::memset(codes, 128, size);
    return 0;
  }
  const __m512 inverse = _mm512_set1_ps(127 / largest);
  for (int64_t i = 0; i < size; i += 16) {
    const __m512 value = _mm512_mul_ps(inverse, widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
    const __m512i code = _mm512_add_epi32(_mm512_cvtps_epi32(value), _mm512_set1_epi32(128));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(code));
  }
  return largest / 127;
}

// 16 sums += codes of four inputs times the bytes of 16 outputs. (gcc 12 copies each sum where it is given the intrinsic.)
inline void add_four(__m512i& sum, __m512i codes, __m512i bytes) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(bytes)); }

// A processor waits for a sum before it adds to it: of few rows every output has several.
template <int R, int lines>
inline void byte_tile(const Input& x, const int8_t* weight, const int32_t* offset, const float* scale, const Ahead& ahead,
                      float* out) {
  constexpr int kSums = R <= 2 ? 4 : R <= 5 ? 2 : 1;
  const int64_t size = x.size;
  const uint8_t* codes = x.codes;
  __m512i sum[kSums][R][2];
#pragma GCC unroll 4
  for (int s = 0; s < kSums; s++)
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) sum[s][r][0] = sum[s][r][1] = _mm512_setzero_si512();
  const char* fetched = ahead.from;
  int64_t k = 0;
  for (int64_t end : {int64_t(4) * ahead.turn, size}) {
    for (; k < end; k += 4 * kSums)
#pragma GCC unroll 4
      for (int s = 0; s < kSums; s++, weight += 4 * kColumns) {
        const __m512i left = _mm512_loadu_si512(weight), right = _mm512_loadu_si512(weight + 64);
        for (int line = 0; line < lines; line++) prefetch<lines == 2 ? kNear : kCore>(fetched + 64 * line);
        fetched += 64 * lines;
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
          int32_t four;
          std::memcpy(&four, codes + r * size + k + 4 * s, 4);
          const __m512i value = _mm512_set1_epi32(four);
          add_four(sum[s][r][0], value, left);
          add_four(sum[s][r][1], value, right);
        }
      }
    fetched = ahead.then;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      __m512i all = _mm512_loadu_si512(offset + 16 * half);
#pragma GCC unroll 4
      for (int s = 0; s < kSums; s++) all = _mm512_add_epi32(all, sum[s][r][half]);
      const __m512 step = _mm512_mul_ps(_mm512_set1_ps(x.factors[r]), _mm512_loadu_ps(scale + 16 * half));
      _mm512_storeu_ps(out + r * kColumns + 16 * half, _mm512_mul_ps(_mm512_cvtepi32_ps(all), step));
    }
}

template <int lines>
void byte_tile_of(int count, const Input& x, const int8_t* weight, const int32_t* offset, const float* scale,
                  const Ahead& ahead, float* out) {
  switch (count) {
#define TILE(n) case n: byte_tile<n, lines>(x, weight, offset, scale, ahead, out); break;
    TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#undef TILE
  }
}

// out [rows][32] = rows times one block of a matrix of bytes.
void byte_product(const Matrix& matrix, int block, const Input& x, int rows, const char* next, float* out) {
  const int8_t* weight = static_cast<const int8_t*>(matrix.weight) + int64_t(block) * kColumns * matrix.inputs;
  const int32_t* offset = matrix.offset + block * kColumns;
  const float* scale = matrix.scale + block * kColumns;
  const auto use = [&](int first, int count, int lines, const Ahead& ahead) {
    const Input from = x.from(first);
    float* to = out + int64_t(first) * kColumns;
    if (lines == 0)
      byte_tile_of<0>(count, from, weight, offset, scale, ahead, to);
    else if (lines == 1)
      byte_tile_of<1>(count, from, weight, offset, scale, ahead, to);
    else
      byte_tile_of<2>(count, from, weight, offset, scale, ahead, to);
  };
  in_tiles(reinterpret_cast<const char*>(weight), matrix.inputs / 4, rows, next, use);
}

#else  // no matrix of bytes is made where `smartree_takes_int8` says no

float round_row(const bf16*, int64_t, uint8_t*) { std::abort(); }
void byte_product(const Matrix&, int, const Input&, int, const char*, float*) { std::abort(); }

#endif

// Rounds this thread's part of the rows.
inline void round_rows(const bf16* x, int64_t size, int rows, const Codes& to, int thread, int threads) {
  for (int64_t row = thread; row < rows; row += threads) to.factors[row] = round_row(x + row * size, size, to.codes + row * size);
}
