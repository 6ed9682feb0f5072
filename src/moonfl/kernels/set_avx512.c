#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
#endif
#define VL 16
#define PLACES 4
#define ROWS 12
#define NAME(x) x##_avx512
#include "set.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
