#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define VL 8
#define PLACES 2
#define ROWS 6
#define NAME(x) x##_avx2
#include "set.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
