// A CUDA device for a torch that was built without CUDA: its memory is the host's, its kernels are the CPU's.
//
// It shows where tensors are, what mixes devices, and what the host waits for; it shows nothing of a GPU's numbers,
// speed or asynchrony. Waiting is reported as CUDA does it, see `torch.cuda.set_sync_debug_mode`.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cstring>
#include <set>

namespace {

using at::Tensor;
using c10::Device;
using c10::IValue;

constexpr auto CUDA = c10::DeviceType::CUDA;
constexpr c10::DeviceIndex N_DEVICES = 2;
thread_local c10::DeviceIndex current = 0;
// What is done about waiting: 0 nothing, 1 a warning, 2 an error.
int sync_debug_mode = 0;

void waits_for(const std::string& what) {
  const auto message = "called a synchronizing CUDA operation: " + what;
  TORCH_CHECK(sync_debug_mode < 2, message);
  if (sync_debug_mode) TORCH_WARN(message);
}

bool is_here(const Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

// --- memory and the present device ---------------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* data = std::malloc(std::max<size_t>(n, 1));
    // NaN: what is read before it is written must be noticed.
    std::memset(data, 0xff, n);
    return {data, data, &std::free, Device(CUDA, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};
Memory memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return N_DEVICES; }
  Device getDevice() const override { return Device(CUDA, current); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < N_DEVICES, "CUDA error: invalid device ordinal");
    uncheckedSetDevice(device);
  }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Stream getStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, Device(CUDA, device.has_index() ? device.index() : current));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { waits_for("synchronize"); }
  void synchronizeDevice(c10::DeviceIndex) const override { waits_for("synchronize"); }
};

}  // namespace

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  int getNumGPUs() const override { return N_DEVICES; }
  DeviceIndex deviceCount() const override { return N_DEVICES; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { current = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  Allocator* getCUDADeviceAllocator() const override { return &memory; }
  Device getDeviceFromPtr(void*) const override { return Device(c10::DeviceType::CUDA, current); }
  void deviceSynchronize(DeviceIndex) const override { waits_for("synchronize"); }
};

}  // namespace at

namespace {

// --- kernels -------------------------------------------------------------------------------------------------------

// Tensors of the device as the CPU's kernels get them, in the same memory; and results on the way back.
class Loan {
 public:
  explicit Loan(c10::DeviceIndex index) : device(CUDA, index) {}

  Tensor lend(const Tensor& tensor) {
    if (!is_here(tensor)) return tensor;
    for (auto& [own, lent] : tensors) {
      if (own.is_same(tensor)) return lent;
    }
    auto lent = made_of(storage_for(tensor.storage()), tensor, c10::DispatchKey::CPU);
    tensors.emplace_back(tensor, lent);
    return lent;
  }

  Tensor take(const Tensor& result) {
    if (!result.defined()) return result;
    for (auto& [own, lent] : tensors) {
      if (lent.is_same(result)) return own;
    }
    for (auto& [own, lent] : storages) {
      if (lent.is_alias_of(result.storage())) return made_of(own, result, c10::DispatchKey::CUDA);
    }
    auto storage = wrapped(result.storage(), device, &memory);
    storages.emplace_back(storage, result.storage());
    return made_of(storage, result, c10::DispatchKey::CUDA);
  }

  // A kernel may have resized what it wrote into.
  void follow() {
    for (auto& [own, lent] : tensors) {
      if (own.sizes() == lent.sizes() && own.storage().data() == lent.storage().data()) continue;
      own.unsafeGetTensorImpl()->set_storage_keep_dtype(wrapped(lent.storage(), device, &memory));
      own.unsafeGetTensorImpl()->set_sizes_and_strides(lent.sizes(), lent.strides(), lent.storage_offset());
    }
  }

 private:
  Device device;
  std::vector<std::pair<Tensor, Tensor>> tensors;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;

  // The same memory on another device; it lasts as long as one of the two is used.
  static c10::Storage wrapped(const c10::Storage& storage, Device where, c10::Allocator* allocator) {
    auto release = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
    c10::DataPtr data(storage.mutable_data(), new c10::Storage(storage), release, where);
    return {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, true};
  }

  c10::Storage storage_for(const c10::Storage& own) {
    for (auto& [known, lent] : storages) {
      if (known.is_alias_of(own)) return lent;
    }
    storages.emplace_back(own, wrapped(own, at::kCPU, c10::GetAllocator(at::kCPU)));
    return storages.back().second;
  }

  static Tensor made_of(c10::Storage storage, const Tensor& like, c10::DispatchKey key) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    auto* implementation = made.unsafeGetTensorImpl();
    implementation->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) implementation->set_wrapped_number(true);
    return made;
  }
};

// The host needs the results of these for a shape, or to check an argument.
const std::set<std::string> SYNCHRONIZING{
    "aten::nonzero", "aten::equal", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::bincount",
    "aten::unique_consecutive", "aten::repeat_interleave", "aten::_linalg_check_errors"};

// Which operators take a 0-d tensor of the CPU for a number.
bool takes_numbers(const std::string& name) {
  for (auto* other : {"_foreach_", "_fused_", "cat", "stack", "gather", "scatter", "index_"}) {
    if (name.rfind(std::string("aten::") + other, 0) == 0) return false;
  }
  return true;
}

template <typename Visit>
void each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) visit(value.toTensor());
  if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
  if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) visit(tensor.value_or(Tensor()));
  }
}

template <typename Change>
IValue changed(const IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional<Tensor>(change(*tensor)) : tensor);
    }
    return list;
  }
  return value;
}

// Every operator without an implementation below: the CPU's, once all arguments are known to be on one device.
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto& name = op.schema().name();
  const auto first = stack->size() - arguments.size();
  std::optional<Device> where;
  auto settle = [&](Device device) {
    TORCH_CHECK(!where || *where == device, "Expected all tensors to be on the same device, but found at least two "
                "devices, ", *where, " and ", device, "! (", name, ")");
    where = device;
  };
  for (size_t i = first; i < stack->size(); i++) {
    each_tensor(stack->at(i), [&](const Tensor& tensor) { if (is_here(tensor)) settle(tensor.device()); });
  }
  for (size_t i = first; i < stack->size() && !where; i++) {
    if (stack->at(i).isDevice()) where = Device(CUDA, std::max<int>(stack->at(i).toDevice().index(), current));
  }
  TORCH_CHECK(where, name, " got no tensor of the device");
  for (size_t i = first; i < stack->size(); i++) {
    const bool is_index = stack->at(i).isOptionalTensorList();
    each_tensor(stack->at(i), [&](const Tensor& tensor) {
      if (!tensor.defined()) return;
      if (is_index && (!tensor.is_cuda() || tensor.scalar_type() == at::kBool)) return waits_for(name);
      if (!tensor.is_cuda() && (tensor.dim() || !takes_numbers(name))) settle(tensor.device());
    });
  }
  if (SYNCHRONIZING.count(name)) waits_for(name);

  Loan loan(where->index());
  for (size_t i = first; i < stack->size(); i++) {
    auto& value = stack->at(i);
    value = changed(value, [&](const Tensor& tensor) { return loan.lend(tensor); });
    if (value.isDevice()) value = Device(at::kCPU);
    if (arguments[i - first].name() == "pin_memory") value = IValue();
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  loan.follow();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); i++) {
    stack->at(i) = changed(stack->at(i), [&](const Tensor& tensor) { return loan.take(tensor); });
  }
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(CUDA)));
  c10::DispatchKeySet key(c10::DispatchKey::CUDA);
  return at::detail::empty_generic(size, &memory, key, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(CUDA)));
  c10::DispatchKeySet key(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(size, stride, &memory, key, c10::dtype_or_default(dtype));
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  // Memory that is not pinned: to the device it is put aside first, so that the host need not wait.
  if (!is_here(self) || (!is_here(source) && !non_blocking)) waits_for("copy");
  Loan loan(current);
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  loan.lend(self).copy_(loan.lend(source));
  return self;
}

at::Scalar number(const Tensor& self) {
  waits_for("item");
  return Loan(current).lend(self).item();
}

// Views of a storage, as files are read and written.
Tensor& set(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* implementation = self.unsafeGetTensorImpl();
  implementation->set_storage_keep_dtype(std::move(source));
  implementation->set_sizes_and_strides(size, stride, offset);
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage source) {
  const int64_t n = source.nbytes() / self.element_size();
  return set(self, std::move(source), 0, {n}, {1});
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

// --- recurrent layers ----------------------------------------------------------------------------------------------

// cuDNN's condition.
void require_contiguous(at::TensorList states) {
  for (const Tensor& state : states) TORCH_CHECK(state.is_contiguous(), "rnn: hx is not contiguous");
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList hx, at::TensorList weights, bool bias,
                                        int64_t layers, double dropout, bool train, bool both, bool batch_first) {
  require_contiguous(hx);
  return at::native::lstm(input, hx, weights, bias, layers, dropout, train, both, batch_first);
}
std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& hx, at::TensorList weights, bool bias,
                               int64_t layers, double dropout, bool train, bool both, bool batch_first) {
  require_contiguous(hx);
  return at::native::gru(input, hx, weights, bias, layers, dropout, train, both, batch_first);
}

Tensor plus(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

// CUDA has these cells as one kernel each, with a gradient; here they are composed of operators that have one.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& c,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const auto gates = (plus(input, input_bias) + plus(hidden, hidden_bias)).chunk(4, 1);
  const auto next = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * next.tanh(), next, at::empty({0}, c.options())};
}
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& h,
                                    const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const auto own = plus(input, input_bias).chunk(3, 1), other = plus(hidden, hidden_bias).chunk(3, 1);
  const auto update = (own[1] + other[1]).sigmoid();
  const auto candidate = (own[2] + (own[0] + other[0]).sigmoid() * other[2]).tanh();
  return {candidate + update * (h - candidate), at::empty({0}, h.options())};
}

using torch::CppFunction;

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(CppFunction::makeFromBoxedFunction<&run>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("_local_scalar_dense", &number);
  m.impl("set_.source_Storage_storage_offset", &set);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  // By default these are composed of CUDA's parts.
  m.impl("convolution", CppFunction::makeFromBoxedFunction<&run>());
  m.impl("convolution_backward", CppFunction::makeFromBoxedFunction<&run>());
  m.impl("mse_loss", CppFunction::makeFromBoxedFunction<&run>());
  m.impl("record_stream", [](Tensor&, at::Stream) {});
}
#define FOR_BOTH(KEY)                            \
  TORCH_LIBRARY_IMPL(aten, KEY, m) {             \
    m.impl("lstm.input", &lstm);                 \
    m.impl("gru.input", &gru);                   \
    m.impl("_thnn_fused_lstm_cell", &lstm_cell); \
    m.impl("_thnn_fused_gru_cell", &gru_cell);   \
  }
FOR_BOTH(AutogradCUDA)
FOR_BOTH(CUDA)

const c10::impl::DeviceGuardImplRegistrar guard(CUDA, new Guard);

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(CUDA, &memory);
  // Torch asks for the hooks once, when it is imported, and keeps them; both classes are without data.
  static_assert(sizeof(at::CUDAHooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) at::CUDAHooks();
  m.def("set_sync_debug_mode", [](int mode) { sync_debug_mode = mode; });
  m.def("get_sync_debug_mode", [] { return sync_debug_mode; });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int index) { Guard().setDevice(Device(CUDA, index)); });
  m.attr("N_DEVICES") = int(N_DEVICES);
}
