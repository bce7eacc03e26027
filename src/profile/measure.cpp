#include "rannc/profile/measure.h"
