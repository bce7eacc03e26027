#include "rannc/plan/plan.h"
