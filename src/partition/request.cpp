#include "rannc/partition/request.h"
