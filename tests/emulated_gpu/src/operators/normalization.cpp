// Normalizations that have kernels of their own on CUDA: cuDNN's batch norm and the gradient of the fused RMS norm.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include "operators.h"

namespace emu {
namespace {

using MaybeTensor = std::optional<Tensor>;

// The values in the type and memory format of `like`.
Tensor formatted(const Tensor &values, const Tensor &like) {
  return values.to(like.scalar_type()).contiguous(like.suggest_memory_format());
}

// The fourth output is cuDNN's reserved space, which nothing reads here.
std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm(const Tensor &input, const Tensor &weight,
                                                      const MaybeTensor &bias, const MaybeTensor &mean,
                                                      const MaybeTensor &variance, bool training, double momentum,
                                                      double epsilon) {
  Tensor x = on_cpu(input), w = on_cpu(weight);
  MaybeTensor b = on_cpu(bias), m = on_cpu(mean), v = on_cpu(variance);
  auto made = compute_on_cpu("void cudnn::bn_fw_tr_1C11_kernel_NCHW", input.get_device(),
                             [=]() -> std::vector<Tensor> {
                               auto [output, saved_mean, saved_rstd] =
                                   at::native_batch_norm(widened(x), w, b, m, v, training, momentum, epsilon);
                               return {formatted(output, x), saved_mean, saved_rstd};
                             },
                             {m.value_or(Tensor()), v.value_or(Tensor())});
  return {made[0], made[1], made[2], at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor &input, const Tensor &gradient,
                                                       const Tensor &weight, const MaybeTensor &mean,
                                                       const MaybeTensor &variance, const MaybeTensor &saved_mean,
                                                       const MaybeTensor &saved_rstd, double epsilon, const Tensor &) {
  Tensor x = on_cpu(input), g = on_cpu(gradient), w = on_cpu(weight);
  MaybeTensor m = on_cpu(mean), v = on_cpu(variance), sm = on_cpu(saved_mean), sr = on_cpu(saved_rstd);
  auto made = compute_on_cpu("void cudnn::bn_bw_1C11_kernel_new", input.get_device(), [=]() -> std::vector<Tensor> {
    auto [dx, dw, db] =
        at::native_batch_norm_backward(widened(g), widened(x), w, m, v, sm, sr, true, epsilon, {true, true, true});
    return {formatted(dx, x), dw, db};
  });
  return {made[0], made[1], made[2]};
}

// With n = x * rstd and y = n * w: dx = rstd * (dy w - n * mean(dy w n)), dw = sum(dy n).
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor &gradient, const Tensor &input, at::IntArrayRef shape,
                                             const Tensor &rstd, const MaybeTensor &weight,
                                             std::array<bool, 2> wanted) {
  TORCH_CHECK(shape.size() == 1, "emulated GPU: RMS norm of the last dimension only");
  Tensor g = on_cpu(gradient), x = on_cpu(input), r = on_cpu(rstd);
  MaybeTensor w = on_cpu(weight);
  bool weighted = wanted[1] && weight;
  auto made = compute_on_cpu(
      "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized", input.get_device(),
      [=]() -> std::vector<Tensor> {
        Tensor dy = g.to(at::kFloat), scale = r.to(at::kFloat), normalized = x.to(at::kFloat) * scale;
        Tensor weighted_dy = w ? dy * w->to(at::kFloat) : dy;
        Tensor dx = scale * (weighted_dy - normalized * (weighted_dy * normalized).mean(-1, true));
        Tensor dw = (dy * normalized).reshape({-1, x.size(-1)}).sum(0);
        return {wanted[0] ? dx.to(x.scalar_type()) : Tensor(), weighted ? dw.to(w->scalar_type()) : Tensor()};
      });
  return {made[0], made[1]};
}

} // namespace

void register_normalization(torch::Library &library) {
  library.impl("cudnn_batch_norm", batch_norm);
  library.impl("cudnn_batch_norm_backward", batch_norm_backward);
  library.impl("_fused_rms_norm_backward", rms_norm_backward);
}

} // namespace emu
