#include "rannc/frontend/capture.h"
