#include "rannc/runtime/executor.h"
