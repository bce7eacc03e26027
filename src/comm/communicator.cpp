#include "rannc/comm/communicator.h"
