#define VL 4
#define PLACES 2
#define ROWS 6
#define NAME(x) x##_base
#include "set.h"
