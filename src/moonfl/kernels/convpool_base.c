#define VL 4
#define TILE 2
#define NAME(x) x##_base
#include "convpool.h"
