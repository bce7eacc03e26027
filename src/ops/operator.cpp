#include "rannc/ops/operator.h"
