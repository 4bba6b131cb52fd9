# Counts what makes the host wait for a device in a program with the static CUDA runtime: the linker puts the functions
# of host_synchronisations.cpp in the calls' place.
function(ddp_count_host_synchronisations target)
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/gpu/host_synchronisations.cpp)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  foreach(name cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cudaMemcpy cudaMemcpyAsync
               cudaFree cudaFreeHost)
    target_link_options(${target} PRIVATE -Wl,--wrap=${name})
  endforeach()
endfunction()
