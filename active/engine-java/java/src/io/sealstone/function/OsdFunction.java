package io.sealstone.function;

/** A function that runs beside the data. The manifest of its JAR file names the class. */
public interface OsdFunction {
    /**
     * Runs one call.
     *
     * @param osd the calls to the device
     * @param call the description of this call
     * @return the status of the job: 0 for success
     * @throws Exception ends the job. The error number of an {@link OsdException} is its status;
     *     any other exception ends the engine.
     */
    long run(Osd osd, Call call) throws Exception;
}
