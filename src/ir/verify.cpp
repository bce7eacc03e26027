#include "rannc/ir/graph.h"
