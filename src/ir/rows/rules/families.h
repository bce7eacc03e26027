#pragma once

#include "ir/rows/row_call.h"

// The rules, each for the operators of the family of that name (rannc/ir/operators.h).
namespace rannc::ir::rules {

// pointwise.cpp
RowAnswer pointwise(const RowCall& call);
RowAnswer identity(const RowCall& call);  ///< linear in its operand, element by element
RowAnswer add(const RowCall& call);
RowAnswer multiply(const RowCall& call);
RowAnswer divide(const RowCall& call);
RowAnswer where(const RowCall& call);
RowAnswer dropout(const RowCall& call);
RowAnswer copy(const RowCall& call);
RowAnswer fill(const RowCall& call);

// create.cpp
RowAnswer create(const RowCall& call);  ///< alike in all rows, or random
RowAnswer create_like(const RowCall& call);
RowAnswer full(const RowCall& call);
RowAnswer counting(const RowCall& call);  ///< arange and others whose content depends on the place

// views.cpp
RowAnswer reshape(const RowCall& call);
RowAnswer permute(const RowCall& call);
RowAnswer transpose(const RowCall& call);
RowAnswer movedim(const RowCall& call);
RowAnswer expand(const RowCall& call);
RowAnswer broadcast_tensors(const RowCall& call);
RowAnswer select(const RowCall& call);
RowAnswer slice(const RowCall& call);
RowAnswer narrow(const RowCall& call);
RowAnswer split(const RowCall& call);
RowAnswer unbind(const RowCall& call);
RowAnswer diagonal(const RowCall& call);

// arrange.cpp
RowAnswer cat(const RowCall& call);
RowAnswer stack(const RowCall& call);
RowAnswer repeat(const RowCall& call);
RowAnswer repeat_interleave(const RowCall& call);

// reduce.cpp
RowAnswer sum(const RowCall& call);
RowAnswer mean(const RowCall& call);
RowAnswer reduce(const RowCall& call);
RowAnswer histogram(const RowCall& call);
RowAnswer extremum(const RowCall& call);  ///< max and min, which are also pointwise
RowAnswer along_dimension(const RowCall& call);
RowAnswer triangle(const RowCall& call);
RowAnswer similarity(const RowCall& call);
RowAnswer fourier(const RowCall& call);

// matmul.cpp
RowAnswer matmul(const RowCall& call);
RowAnswer addmm(const RowCall& call);
RowAnswer linear(const RowCall& call);
RowAnswer einsum(const RowCall& call);
RowAnswer outer(const RowCall& call);
RowAnswer cdist(const RowCall& call);
RowAnswer attention(const RowCall& call);
RowAnswer bilinear(const RowCall& call);

// layers.cpp
RowAnswer convolution(const RowCall& call);
RowAnswer spatial(const RowCall& call);
RowAnswer pad(const RowCall& call);
RowAnswer batch_norm(const RowCall& call);
RowAnswer layer_norm(const RowCall& call);
RowAnswer rows_first(const RowCall& call);  ///< rows in dimension 0 of operands and results
RowAnswer embedding(const RowCall& call);
RowAnswer embedding_bag(const RowCall& call);
RowAnswer recurrent(const RowCall& call);
RowAnswer one_hot(const RowCall& call);

// losses.cpp
RowAnswer pointwise_loss(const RowCall& call);
RowAnswer class_loss(const RowCall& call);
RowAnswer sample_loss(const RowCall& call);
RowAnswer ctc_loss(const RowCall& call);

// indexing.cpp
RowAnswer index(const RowCall& call);
RowAnswer index_put(const RowCall& call);
RowAnswer index_select(const RowCall& call);
RowAnswer index_write(const RowCall& call);
RowAnswer gather(const RowCall& call);

}  // namespace rannc::ir::rules
