/*
 * graphics.h - what cudaGL.h and cudaVDPAU.h declare of contexts. Those ask for the headers of OpenGL and VDPAU. A
 * VdpDevice is a number of 32 bits. Include it behind cuda.h.
 */
#ifndef SGSIM_GRAPHICS_H
#define SGSIM_GRAPHICS_H

#include <stdint.h>

CUresult CUDAAPI cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device);
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdp_device,
                                  void *get_proc_address);
CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdp_device,
                                     void *get_proc_address);

#endif
